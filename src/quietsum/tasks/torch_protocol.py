"""What a torch task is: a model, one loss per example, protected records, and a score on data that nobody protects.

The same promises as in :mod:`quietsum.tasks.protocol`: sizes are declared, features are computed from one row and
public constants, and ``evaluate`` never looks at protected records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

from quietsum.tasks.protocol import Metrics

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

__all__ = ["DeclaresSites", "HasExample", "HasHoldOut", "HasPeople", "HasRoot", "HasSites", "Settings", "TorchTask"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a task is best trained, chosen without its test rows; ``training`` is what PrivacyConfig takes besides ε."""

    learning_rate: float
    optimizer: str
    training: dict[str, Any]


class TorchTask(Protocol):
    """All that a torch user writes."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def title(self) -> str:
        """One line for people."""
        ...

    @property
    def size(self) -> int:
        """The declared, public number of training records."""
        ...

    @property
    def public(self) -> str:
        """Why nobody in the records needs protection; empty where somebody does."""
        ...

    @property
    def settings(self) -> Settings:
        """Batch, epochs, clip and learning rate to begin with."""
        ...

    def model(self) -> nn.Module:
        """A fresh model. No data is touched."""
        ...

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """One value per example."""
        ...

    def records(self) -> tuple[Tensor, ...]:
        """The protected training records: row i of every tensor is record i."""
        ...

    def evaluate(self, model: nn.Module) -> Metrics:
        """Scores on data declared unprotected."""
        ...


@runtime_checkable
class HasSites(Protocol):
    """A task whose records say where they come from, so that ``split = "natural"`` can deal them out."""

    def sites(self) -> Sequence[str]:
        """The site of each training record, in the order of :meth:`TorchTask.records`."""
        ...


@runtime_checkable
class DeclaresSites(Protocol):
    """A task with protected records that declares how many each of its sites has. Declared, never counted."""

    @property
    def site_sizes(self) -> Mapping[str, int]:
        """The public size of each site."""
        ...


@runtime_checkable
class HasExample(Protocol):
    """A task with made-up records, so that a site hears of its mistakes before a record is read and paid for."""

    def example(self) -> tuple[Tensor, ...]:
        """A few records that nobody needs to protect, of the shape and type of the real ones. No data is touched."""
        ...


@runtime_checkable
class HasRoot(Protocol):
    """A task that keeps some of its public records for trials at the server; ``evaluate`` does not score them."""

    @property
    def root_size(self) -> int:
        """How many; 0 where none are asked for. Known before any record is read."""
        ...

    def root(self) -> tuple[Tensor, ...]:
        """Those records, of the shape of :meth:`TorchTask.records`. Guarantees: nobody needs to protect them."""
        ...


@runtime_checkable
class HasHoldOut(Protocol):
    """A task of several classes that shows the unprotected rows it scores a model on, for detection."""

    def hold_out(self) -> tuple[Tensor, Tensor]:
        """Those rows, and their classes counted from zero; the model answers one score a class."""
        ...


@runtime_checkable
class HasPeople(Protocol):
    """A task that knows whose each record is; a person's records then stay at one party."""

    def people(self) -> NDArray[Any]:
        """The person of each training record, in the order of :meth:`TorchTask.records`."""
        ...
