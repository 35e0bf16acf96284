"""What can be wrong with records, each as a small lesson: for our readers and for a task of your own.

During private training a record with a broken pixel or label counts as zero, in silence, because an error in the middle
would tell about that record. So look before training, where the data lies and where its holder can mend it. The
messages say which row is wrong and never what it holds.

>>> check_labels("diagnosis", np.array([0, 1, 2, 1]), classes=2)
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: diagnosis = 4 rows, row 2 lies outside 0 … 1; number the classes from 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter

__all__ = ["check_images", "check_labels", "check_options", "one_site_each"]


def check_options(network: str, networks: Sequence[str], evaluate_on: str, split: int, splits: int = 1) -> None:
    """Refuse a network, a part to score or a split that a task does not have.

    >>> check_options("linear", ("linear", "mlp"), "test", 3)
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: split = 3 does not exist; this task has one split, 0
    """
    if network not in networks:
        known = " or ".join(map(repr, networks))
        raise InvalidParameter("network", network, "is not known", f"choose {known}")
    if evaluate_on not in ("test", "validation"):
        raise InvalidParameter("evaluate_on", evaluate_on, "is not known", "choose 'test' or 'validation'")
    if not isinstance(split, int) or isinstance(split, bool) or not 0 <= split < splits:
        remedy = "this task has one split, 0" if splits == 1 else f"choose 0 … {splits - 1}"
        raise InvalidParameter("split", split, "does not exist", remedy)


def check_images(what: str, images: NDArray[Any], *, shape: tuple[int, ...]) -> NDArray[Any]:
    """``images`` where they are (n, *shape) numbers, at least one of them and none NaN or infinite."""
    seen = _Said(f"{images.dtype} of shape {images.shape}")
    if images.shape[1:] != shape or images.ndim != len(shape) + 1:
        wanted = " × ".join(map(str, shape))
        raise InvalidParameter(what, seen, f"are not n × {wanted}", "bring every image to that size by itself")
    if len(images) == 0:
        raise InvalidParameter(what, seen, "hold no image at all", "look for a truncated file or a filter")
    if images.dtype.kind not in "biuf":
        raise InvalidParameter(what, seen, "are no numbers", "pass whole numbers or floats")
    if images.dtype.kind == "f":
        broken = np.flatnonzero(~np.isfinite(images.reshape(len(images), -1)).all(axis=1))
        if len(broken):
            raise InvalidParameter(
                what, seen, f"have NaN or infinite pixels, first in row {broken[0]}",
                "leave the image out, or fill in a public constant: a mean of other rows would tell of them",
            )  # fmt: skip
    return images


def check_labels(
    what: str, labels: NDArray[Any], *, classes: int, rows: int | None = None, every_class: bool = True
) -> NDArray[np.int64]:
    """``labels`` as whole numbers in 0 … classes − 1, one for each of ``rows``, every class among them."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        raise InvalidParameter(what, f"shape {labels.shape}", "is no list of labels", "pass one label per row")
    seen = f"{len(flat)} rows"
    remedy = "number the classes from 0"
    if rows is not None and len(flat) != rows:
        raise InvalidParameter(what, _Said(seen), f"do not fit {rows} images", "pass one label per row")
    if flat.dtype.kind not in "biuf":
        raise InvalidParameter(what, _Said(seen), "are no numbers", remedy)
    with np.errstate(invalid="ignore"):
        whole = np.asarray(flat, dtype=np.float64)
        wrong = ~np.isfinite(whole) | (whole != np.floor(whole)) | (whole < 0) | (whole >= classes)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InvalidParameter(what, _Said(f"{seen}, row {first}"), f"lies outside 0 … {classes - 1}", remedy)
    found = whole.astype(np.int64)
    if every_class:
        empty = sorted(set(range(classes)) - set(found.tolist()))
        if empty:
            raise InvalidParameter(
                what, _Said(seen), f"have no example of class {empty[0]}",
                "a score of that class would be made up; look for a filter, or declare fewer classes",
            )  # fmt: skip
    return found


def one_site_each(people: NDArray[Any], sites: NDArray[Any], *, person: str = "patient") -> None:
    """An error where one person has records at two sites.

    Guarantees: when it returns, a person-level ε of one site is that person's whole ε. Over two sites it would be the
    sum of both, and a test site that shares people with a training site measures memory.
    """
    if people.shape != sites.shape or people.ndim != 1:
        raise InvalidParameter("sites", sites.shape, f"do not fit {people.shape} people", "pass one of each per record")
    names, owner = np.unique(people.astype(str) if people.dtype.kind == "O" else people, return_inverse=True)
    places, place = np.unique(sites.astype(str) if sites.dtype.kind == "O" else sites, return_inverse=True)
    pairs = np.unique(owner.astype(np.int64) * len(places) + place)
    shared = int((np.bincount(pairs // max(1, len(places)), minlength=len(names)) > 1).sum())
    if shared:
        raise InvalidParameter(
            "sites", _Said(f"{len(places)} sites, {len(names)} people"),
            f"share {shared} of them: one {person} in two sites pays twice",
            f"give each {person} to one site, or add the two sites' person-level ε for those people",
        )  # fmt: skip


class _Said(str):
    """Words that an error shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
