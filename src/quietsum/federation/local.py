"""All parties in this process, one at a time: the quickest way to run a federation, and the one the tests trust.

Drop-outs and refusals can be simulated. They are drawn from the operating system like everything else, and they never
change what is charged except where a party refuses before it touches its data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, final

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.failpoints import reach
from quietsum.federation.messages import Lost, Refusal, Reply, TrainRequest, Update
from quietsum.mechanisms.rng import RandomSource, system_randomness
from quietsum.party.work import AnsweredBefore, NotTouched, Site

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan
    from quietsum.tasks.protocol import NumpyTask

__all__ = ["LocalFederation"]


@final
class LocalFederation:
    """Parties as objects of this process, asked one after the other; memory holds one update at a time."""

    def __init__(self, sites: Mapping[str, Site], *, drop_outs: float = 0.0, rng: RandomSource) -> None:
        if not sites:
            raise InvalidParameter("sites", dict(sites), "is empty", "a federation needs at least one party")
        self._sites = dict(sites)
        self._drop_outs, self._rng = drop_outs, rng

    @classmethod
    def of(cls, task: NumpyTask, resolved: ResolvedPlan, *, rng: RandomSource | None = None) -> LocalFederation:
        """The parties of a resolved plan, each with its share of ``task`` and randomness of its own."""
        simulate = resolved.plan.federation.simulate
        sites = {
            party.name: Site(
                party.name,
                task=task,
                resolved=resolved,
                rng=rng or system_randomness(),
                refuses="the plan simulates its refusal" if party.name in simulate.refusing else "",
            )
            for party in resolved.parties
        }
        return cls(sites, drop_outs=simulate.drop_outs, rng=rng or system_randomness())

    def registered(self) -> Sequence[str]:
        """All parties, in the order of the plan."""
        return tuple(self._sites)

    def ask(self, request: TrainRequest, cohort: Sequence[str]) -> Iterator[Reply]:
        """One reply each, as soon as it is there."""
        for name in cohort:
            yield self._ask_one(name, request)

    def _ask_one(self, name: str, request: TrainRequest) -> Reply:
        try:
            delta = self._sites[name].answer(request.key, request.params.copy())
        except NotTouched as refusal:
            return Refusal(party=name, reason=str(refusal))
        except AnsweredBefore as error:
            return Lost(party=name, reason=str(error))
        except (QuietsumError, ArithmeticError, LookupError, ValueError, OSError, MemoryError) as error:
            # What failed may depend on a record, so neither its message nor a refund leaves the party.
            return Lost(party=name, reason=f"its work failed ({type(error).__name__})")
        reach("party:sent")
        if self._drop_outs and bool(self._rng.coins(self._drop_outs, 1)[0]):
            return Lost(party=name, reason="the plan simulates that its reply was lost")
        return Update(party=name, delta=delta)
