"""Accountants by their older words, and a history that another system wrote.

>>> accountant = PrivacyAccountant(
...     noise_multiplier=1.2, sampling_probability=0.0032, target_delta=1e-5, target_epsilon=3.0
... )
>>> epsilon, delta = accountant.step(31_200)
>>> round(epsilon, 2), delta, accountant.is_budget_exceeded()  # the document expects 1.0
(2.32, 1e-05, False)
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from quietsum import privacy
from quietsum.errors import CorruptState, InvalidParameter, QuietsumError, printable
from quietsum.privacy import Guarantee
from quietsum.validate import finite_number

__all__ = ["DPGuarantee", "ImportedHistory", "PrivacyAccountant", "import_checkpoint"]

_LARGEST: Final = 1 << 31
"""Bytes of a checkpoint: what lies beside its privacy block may be a large model."""


def PrivacyAccountant(  # noqa: N802 - the older systems' name, which is that of a class there
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    delta: float | None = None,
    max_epsilon: float | None = None,
    *,
    target_delta: float | None = None,
    target_epsilon: float | None = None,
    sampling_probability: float | None = None,
    **options: Any,
) -> privacy.PrivacyAccountant:
    """Our :class:`~quietsum.privacy.PrivacyAccountant`, with the words of the older systems for what it is given.

    ``target_delta`` is ``delta``, ``target_epsilon`` is ``max_epsilon``, ``sampling_probability`` is ``sample_rate``.
    Queries of pure ε are charged by its ``record_query``. Raises InvalidParameter if a value is given under two names.
    """
    return privacy.PrivacyAccountant(
        noise_multiplier=noise_multiplier,
        sample_rate=_one_of("sample_rate", sample_rate, "sampling_probability", sampling_probability),
        delta=_one_of("delta", delta, "target_delta", target_delta, otherwise=1e-5),
        max_epsilon=_one_of("max_epsilon", max_epsilon, "target_epsilon", target_epsilon),
        **options,
    )


def DPGuarantee(epsilon: float, delta: float, order: float) -> Guarantee:  # noqa: N802 - a class of the older system
    """A :class:`~quietsum.privacy.Guarantee` of three numbers, computed elsewhere by way of Rényi divergence.

    >>> DPGuarantee(2.5, 1e-5, 8.0)
    Guarantee(ε = 2.5 per record at δ = 1e-05, rényi at order 8, stated elsewhere)
    """
    return Guarantee(epsilon=epsilon, delta=delta, order=order, method=f"rényi at order {order:g}, stated elsewhere")


def _one_of(name: str, value: Any, older: str, other: Any, *, otherwise: Any = None) -> Any:
    if value is not None and other is not None:
        raise InvalidParameter(older, other, f"stands beside {name} = {value!r}", f"give {name} alone")
    given = value if other is None else other
    return otherwise if given is None else given


# ------------------------------------------------------------------------------------- another system's checkpoint


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ImportedHistory:
    """What was read of a checkpoint: an ``accountant`` that holds its history, and the ε that the checkpoint claims.

    ``accountant`` prices the history anew; a claim below its ε was no guarantee.
    """

    accountant: privacy.PrivacyAccountant
    claimed_sample_epsilon: float | None
    claimed_user_epsilon: float | None

    @property
    def corrections(self) -> tuple[str, ...]:
        """One sentence for each ε that the checkpoint states too low."""
        pairs = (
            ("record", self.claimed_sample_epsilon, self.accountant.get_cumulative_sample_epsilon()),
            ("client", self.claimed_user_epsilon, self.accountant.get_cumulative_user_epsilon()),
        )
        return tuple(
            f"the checkpoint claims ε = {claimed:.4g} per {unit}; its history costs {true:.4g}"
            for unit, claimed, true in pairs
            if claimed is not None and claimed < true * (1 - 1e-6)
        )


def import_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any]) -> ImportedHistory:
    """The privacy history of a DP-FedMed checkpoint: its dict, a JSON file, or a file of ``torch.save``.

    Its block ``privacy`` has ``target_delta``, and ``sample_history`` and ``user_history`` with (σ, q, steps) a round.
    The ε that it states are read as claims and never charged: the history is priced anew. Nothing in the file is
    executed: a file of torch is read with ``weights_only=True``. Raises CorruptState if it is not such a block.

    >>> found = import_checkpoint({"privacy": {
    ...     "target_delta": 1e-5, "sample_history": [(1.0, 0.1, 100), (1.0, 0.1, 100)], "user_history": [],
    ...     "cumulative_sample_epsilon": 2.5, "cumulative_user_epsilon": 0.0,
    ... }})
    >>> found.corrections
    ('the checkpoint claims ε = 2.5 per record; its history costs 9.971',)
    >>> found.accountant.record_round(round_num=3, noise_multiplier_sample=1.0, sample_rate_sample=0.1,
    ...                               steps_sample=100)
    """
    values = source if isinstance(source, Mapping) else _read(Path(source))
    block = values.get("privacy", values)
    if not isinstance(block, Mapping) or "sample_history" not in block:
        raise CorruptState("the checkpoint has no privacy block with a sample_history; pass the dict that holds one")
    try:
        accountant = privacy.PrivacyAccountant(delta=block["target_delta"])
        for level in ("sample", "user"):
            for number, entry in enumerate(block.get(f"{level}_history") or (), 1):
                noise, rate, steps = entry
                accountant.record_round(**{
                    "round_num": number, f"noise_multiplier_{level}": noise, f"sample_rate_{level}": rate,
                    f"steps_{level}": steps,
                })  # fmt: skip
        claims = [
            None if (value := block.get(f"cumulative_{level}_epsilon")) is None else finite_number("claim", value)
            for level in ("sample", "user")
        ]
        for level, claimed in zip(("sample", "user"), claims, strict=True):
            if claimed and not block.get(f"{level}_history"):
                problem = f"claims ε = {claimed:.4g} by {level} with no {level}_history, which would cost nothing"
                raise CorruptState(f"the checkpoint's privacy block {problem}; import the whole block")
    except CorruptState:
        raise
    except QuietsumError as error:
        raise CorruptState(f"the checkpoint's privacy block cannot be used: {error}") from None
    except (LookupError, TypeError, ValueError) as error:
        shown = printable(f"{type(error).__name__}: {error}")[:120]
        raise CorruptState(f"the checkpoint's privacy block is not of (σ, q, steps) ({shown})") from None
    return ImportedHistory(accountant=accountant, claimed_sample_epsilon=claims[0], claimed_user_epsilon=claims[1])


def _read(path: Path) -> Mapping[str, Any]:
    """What a file holds, by its first bytes: JSON, or an archive of torch."""
    try:
        if not path.is_file():
            raise InvalidParameter("source", str(path), "is no file", "name the checkpoint")
        if path.stat().st_size > _LARGEST:
            raise CorruptState(f"{path} is larger than {_LARGEST} bytes; extract its privacy block as JSON")
        with path.open("rb") as file:
            archive = file.read(2) == b"PK"
        found = _torch(path) if archive else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, QuietsumError):
            raise
        raise CorruptState(f"{path} cannot be read as JSON or as a file of torch.save ({error})") from None
    if not isinstance(found, Mapping):
        raise CorruptState(f"{path} holds no dict")
    return found


def _torch(path: Path) -> Any:
    import pickle

    try:
        import torch
    except ModuleNotFoundError:
        raise CorruptState(
            f"{path} is a file of torch, which is not installed; install quietsum[train], or save its privacy block "
            "as JSON"
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        first = printable(str(error).splitlines()[0])[:120]
        raise CorruptState(f"{path} holds more than numbers and tensors, or is broken ({first})") from None
