"""Text: the next byte of a document, or its class, where a record is a whole document and never a token.

A guarantee per token would be worth little: a person's name stands in a text many times, and its tokens are all of one
document. So a document of any length is one record, one loss and one clipped gradient: its first ``windows × length``
bytes, in ``windows`` windows; what is beyond them is not trained on. Where authors are known the person is the author,
and a plan can promise something to all documents of one (``max_records``). Texts that quote each other are not
protected from each other's readers: what stands in the records of others is theirs.

Without files of one's own the texts are those of Python's standard library (:mod:`.files.text`), whose sites are its
modules. With ``folder`` they are protected unless ``public`` says why not: then ``size`` is declared, and the score
stands on the documents of ``score_folder``, which need no protection.

>>> task = TextTask(length=64)
>>> task.size > 3000, tuple(task.example()[0].shape)
(True, (1, 65))
"""

from __future__ import annotations

import functools
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from quietsum.errors import CorruptState, DataMissing, InvalidParameter
from quietsum.learning import cross_entropy
from quietsum.tasks.checks import check_options
from quietsum.tasks.gallery.byte_transformer import MARK, VOCABULARY, ByteTransformer, encode_text, with_adapters
from quietsum.tasks.gallery.files.text import KINDS, Document, read_documents, read_library
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root
from quietsum.tasks.scores import majority
from quietsum.tasks.splits import places
from quietsum.validate import whole_number

__all__ = ["TextTask", "next_byte_loss"]

_NETWORKS: Final = {"small": (64, 2, 4), "medium": (128, 4, 4), "large": (384, 6, 6)}  # width, depth, heads
_SPLIT: Final = 0x7E
_SCORED: Final = 1000  # documents that a score stands on, at most
_PIECE: Final = 100


def next_byte_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """−ln p of the next byte, averaged over the bytes of one document; 0 for an empty one."""
    losses, kept = _each_byte(model(batch[0]), batch[0])
    return losses.sum(1) / kept.sum(1).clamp(min=1)


def _each_byte(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """−ln p of each byte of a document, (n, W L), and which places hold one."""
    wanted = tokens[:, 1:].long()
    kept = (wanted >= 0) & (wanted < MARK)
    losses = functional.cross_entropy(
        scores.flatten(0, -2), torch.where(kept, wanted, 0).flatten(), reduction="none"
    )  # fmt: skip
    return torch.where(kept, losses.view_as(wanted), 0.0), kept


@final
class TextTask:
    """What comes next, or what is this text about?

    ``predict`` is ``next`` or ``class``; ``network`` ``small`` (2 × 64), ``medium`` (4 × 128) or ``large`` (6 × 384).
    ``adapters`` is the rank of what is trained beside a frozen model, 0 for all of it; ``base`` a safetensors file of a
    model that was trained with ``adapters=0`` on texts that need no protection, without which the frozen model is
    random. ``labels`` counts the classes of a folder's documents. With ``evaluate_on="validation"`` documents that
    would train are scored instead, and do not train, so that settings are chosen without the test documents.
    """

    name, title = "text", "texts, byte by byte"
    person = "author"

    def __init__(
        self,
        *,
        predict: str = "next",
        network: str = "small",
        length: int = 128,
        windows: int = 1,
        adapters: int = 0,
        base: str | os.PathLike[str] | None = None,
        evaluate_on: str = "test",
        folder: str | os.PathLike[str] | None = None,
        score_folder: str | os.PathLike[str] | None = None,
        public: str = "",
        size: int | None = None,
        labels: int | None = None,
        site_sizes: dict[str, int] | None = None,
        root: int | str = 0,
    ) -> None:
        check_options(network, tuple(_NETWORKS), evaluate_on, 0)
        if predict not in ("next", "class"):
            raise InvalidParameter("predict", predict, "is not known", "choose 'next' or 'class'")
        self.predict, self.network, self.evaluate_on = predict, network, evaluate_on
        self.length, self.windows = whole_number("length", length, 8), whole_number("windows", windows, 1)
        self.adapters = whole_number("adapters", adapters, 0)
        self._base = None if base is None else Path(base)
        self.root_size = check_root(root, self.name, why_not="no public constants write a text")
        self._folder = None if folder is None else Path(folder)
        self._scored = None if score_folder is None else Path(score_folder)
        self.loss = next_byte_loss if predict == "next" else cross_entropy
        if self._folder is None:
            self._check_library(score_folder, public, size, labels, site_sizes)
            self.public = "the texts are published with Python, and no writer of them can be harmed"
            self.classes: tuple[str, ...] | None = KINDS if predict == "class" else None
            self._outputs = VOCABULARY if predict == "next" else len(KINDS)
            self.sites = self._sites
        else:
            self._open_folder(str(public).strip(), size, labels, site_sizes)

    def _check_library(self, *stated: Any) -> None:
        if any(stated):
            problem = "is for documents of one's own"
            remedy = "state folder too, or leave score_folder, public, size, labels and site_sizes out"
            raise InvalidParameter("folder", None, problem, remedy)

    def _open_folder(
        self, public: str, size: int | None, labels: int | None, site_sizes: dict[str, int] | None
    ) -> None:
        self.public = public
        if size is None and not public:
            problem = "is missing: how many documents a protected folder holds is private, and a plan needs a number"
            raise InvalidParameter("size", None, problem, "declare a round number above what is there")
        if self._scored is None:
            problem = "is missing: a score on the documents that train would be a release without a charge"
            raise InvalidParameter("score_folder", None, problem, "name a folder of documents that need no protection")
        if self._folder is not None and self._scored.resolve() == self._folder.resolve():
            raise InvalidParameter(
                "score_folder", str(self._scored), "is the folder that trains", "name another one, of public documents"
            )
        if self.predict == "class" and labels is None:
            raise InvalidParameter("labels", None, "is missing", "say how many classes the labels 0, 1, … are of")
        self._declared = None if size is None else whole_number("size", size, 1)
        self._outputs = VOCABULARY if self.predict == "next" else whole_number("labels", labels, 2)
        self.classes = tuple(f"class {place}" for place in range(self._outputs)) if self.predict == "class" else None
        self.people = self._people  # who wrote them: asked for where a plan promises something to authors
        if site_sizes is not None:
            self.site_sizes = dict(site_sizes)
        if site_sizes is not None or public:
            self.sites = self._sites

    # ------------------------------------------------------------------------------------------------- documents

    @functools.cached_property
    def _documents(self) -> tuple[Document, ...]:
        if self._folder is not None:
            return read_documents(self._folder)
        part = _parts(read_library())
        chosen = part == 0 if self.evaluate_on == "validation" else part != 2
        return tuple(one for one, trains in zip(read_library(), chosen.tolist(), strict=True) if trains)

    @property
    def size(self) -> int:
        """How many documents train: counted where they are public, declared where they are not."""
        declared: int | None = getattr(self, "_declared", None)
        return len(self._documents) if declared is None else declared

    @property
    def settings(self) -> Settings:
        """Left to the defaults."""
        return Settings()

    def model(self) -> nn.Module:
        """A fresh network; with adapters, beside the frozen one of ``base``."""
        width, depth, heads = _NETWORKS[self.network]
        made = ByteTransformer(
            width=width, depth=depth, heads=heads, length=self.length, outputs=self._outputs,
            whole=self.predict == "class",
        )  # fmt: skip
        if self._base is not None:
            _fill(made, self._base)
        return with_adapters(made, self.adapters) if self.adapters else made

    def example(self) -> tuple[Tensor, ...]:
        """A made-up document."""
        return self._tensors([Document(text="A text of no one. " * 3)])

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the folder is not there; nothing is read."""
        if self._folder is not None and not self._folder.is_dir():
            raise DataMissing(f"{self._folder} is not there; name the folder that holds *.txt or *.jsonl")

    def records(self) -> tuple[Tensor, ...]:
        """The first bytes of every document, and its class where classes are predicted."""
        return self._tensors(self._documents)

    def _sites(self) -> tuple[str, ...]:
        """The site of each document: of the standard library, its module."""
        return tuple(one.site for one in self._documents)

    def _people(self) -> NDArray[np.str_]:
        """The author of each document; one without an author is a person of its own."""
        return np.array([one.author or f"document {place}" for place, one in enumerate(self._documents)])

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published documents that would be scored, for trials at the server."""
        return self._tensors(self._read_scored()[: self.root_size])

    def evaluate(self, model: nn.Module) -> Metrics:
        """Bits for each byte of documents that do not train, or how many classes are right."""
        documents = self._read_scored()[self.root_size :][:_SCORED]
        parts = self._tensors(documents)
        device = next(model.parameters()).device
        pieces = [tuple(part[at : at + _PIECE].to(device) for part in parts) for at in range(0, len(documents), _PIECE)]
        what = f"{len(documents):,} {'published' if self._folder is None else 'unprotected'} documents"
        what += f" ({self.evaluate_on})" if self._folder is None else ""
        with torch.no_grad():
            if self.predict == "class":
                right = sum(int((model(one[0]).argmax(-1) == one[1]).sum()) for one in pieces)
                known = majority(parts[1].numpy())
                return Metrics(values={"accuracy": right / len(documents)}, on=what, chance={"accuracy": known})
            nats, count = 0.0, 0
            for one in pieces:
                losses, kept = _each_byte(model(one[0]), one[0])
                nats += float(losses.double().sum())
                count += int(kept.sum())
        bits = nats / max(count, 1) / math.log(2)
        return Metrics(values={"bits_per_byte": bits}, on=what, chance={"bits_per_byte": 8.0})

    def _read_scored(self) -> Sequence[Document]:
        if self._scored is not None:
            return read_documents(self._scored)
        wanted = 2 if self.evaluate_on == "test" else 1
        return [one for one, part in zip(read_library(), _parts(read_library()), strict=True) if part == wanted]

    def _tensors(self, documents: Sequence[Document]) -> tuple[Tensor, ...]:
        most = self.length * self.windows
        tokens = torch.stack([encode_text(one.text, most) for one in documents])
        if self.predict == "next":
            return (tokens,)
        return tokens, torch.tensor([one.kind for one in documents], dtype=torch.int64)


def _parts(documents: Sequence[Document]) -> NDArray[np.int64]:
    """0 for documents that train, 1 for validation, 2 for the test: a tenth each, by a hash of the text alone."""
    hashed = np.array([zlib.crc32(one.text.encode()) for one in documents], dtype=np.uint64)
    where = places(hashed, _SPLIT)
    return np.where(where < 0.1, 2, np.where(where < 0.2, 1, 0)).astype(np.int64)


def _fill(model: nn.Module, path: Path) -> None:
    """Fill a model from a file of ``PrivateTrainer.save``, or from a plain state dict in safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise DataMissing(f"{path} is not there; put the base model there, or leave base out") from None
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CorruptState(f"{path} holds no weights of this network ({str(error).splitlines()[-1].strip()})") from None
