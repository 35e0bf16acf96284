"""What a party has to do in one round: a frozen value, made by the plan, and every number in it is public.

The sampler in it draws the batches and is the one that states their amplification; the mechanism in it clips and adds
the noise and is the one that states the event. So what a party does and what it is charged for cannot differ.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from quietsum.validate import non_negative, positive, whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import ClippedSum, DistributedNoise
    from quietsum.sampling import Sampling

__all__ = ["LocalOrders"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalOrders:
    """One party's round.

    ``mechanism`` is the record level: per-example clip and noise; None means neither. ``max_records`` bounds each
    person's records before anything is drawn. ``client`` is the client level with noise at the party: the update is
    bounded and gets its noise before it leaves. ``proximal`` is FedProx' μ (Li et al. 2020): μ·(w − w_server) is added
    to the mean gradient, after its noise, so it costs nothing. ``distributed`` is noise in shares, for the unit that it
    names: the record sum of one step is clipped example by example to its ``max_norm`` and sent as it is, or the whole
    update is; its share of noise is added on the grid, and the result leaves masked. ``mechanism`` (records) or
    ``client`` is then None: that noise is not added twice. ``canaries`` is how many made-up
    records a later audit goes by.
    """

    steps: int
    sampling: Sampling
    expected_batch: float
    learning_rate: float
    momentum: float = 0.0
    proximal: float = 0.0
    mechanism: ClippedSum | None = None
    max_records: int | None = None
    client: ClippedSum | None = None
    distributed: DistributedNoise | None = None
    canaries: int = 0

    @property
    def summed(self) -> DistributedNoise | None:
        """The noise in shares of a record sum: the party sends its clipped gradients' sum instead of an update."""
        from quietsum.privacy import PrivacyUnit

        found = self.distributed
        return found if found is not None and found.unit is not PrivacyUnit.CLIENT else None

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1)
        positive("expected_batch", self.expected_batch, "sample rate × declared size, which is public")
        positive("learning_rate", self.learning_rate)
        non_negative("momentum", self.momentum)
        non_negative("proximal", self.proximal)
        whole_number("canaries", self.canaries)
