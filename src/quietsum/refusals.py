"""What would break a promise: one table of rows, each with a when, a why and an instead.

A plan is held against every row before anything starts, and all rows that apply are told together. A row's ``when``
answers with what it found, in words, or with "" where the row does not apply; so a row can be read, tested and added on
its own. What a single value may hold is not decided here but by the value itself (:mod:`quietsum.plan.values`).

>>> from quietsum.plan import AggregationPlan, PartyFacts, Plan, PrivacyPlan, RecordPlan
>>> sites = [PartyFacts(name="north", dataset="visits", size=300), PartyFacts(name="south", dataset="visits", size=90)]
>>> promise = PrivacyPlan(record=RecordPlan(epsilon=1, noise_multiplier=2, delta=1e-4))
>>> for row in found(Plan(privacy=promise), sites):
...     print(row.name)
noise-with-target
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, final

from quietsum.errors import PlanRefused

if TYPE_CHECKING:  # the plan asks this module, so at run time this module knows nothing of the plan
    from quietsum.plan.values import PartyFacts, Plan, RecordPlan

__all__ = ["REFUSALS", "Refusal", "check", "found", "taking_part", "warnings"]

NEEDS_INDIVIDUALS = frozenset({"median", "trimmed-mean", "krum", "multi-krum", "signguard", "bulyan"})
"""Rules that compare single updates, which a masked sum hides."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """One row. ``when`` says what it found in the plan and the parties, "" for nothing."""

    name: str
    when: Callable[[Plan, Sequence[PartyFacts]], str]
    why: str
    instead: str

    def message(self, plan: Plan, parties: Sequence[PartyFacts]) -> str:
        """What was found, why it is refused, what to do instead; "" where the row does not apply."""
        what = self.when(plan, parties)
        return f"{what}: {self.why}; {self.instead}" if what else ""


def check(plan: Plan, parties: Sequence[PartyFacts]) -> None:
    """Raise :class:`~quietsum.errors.PlanRefused` with one line for each row that applies."""
    messages = [message for row in REFUSALS if (message := row.message(plan, parties))]
    if messages:
        raise PlanRefused("\n".join(messages))


def found(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[Refusal, ...]:
    """The rows that apply."""
    return tuple(row for row in REFUSALS if row.when(plan, parties))


def taking_part(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[PartyFacts, ...]:
    """The parties that the plan names, in the task's order; all of them where it names none."""
    wanted = set(plan.federation.parties)
    return tuple(party for party in parties if not wanted or party.name in wanted)


def warnings(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[str, ...]:
    """What is allowed and still worth a sentence."""
    told = []
    delta, largest = _record(plan).delta, _largest(plan, parties)
    if plan.privacy.style != "none" and delta is not None and largest and delta > 1 / (10 * largest):
        told.append(
            f"privacy.record.delta = {delta:g} is more than 1/(10 n) = {1 / (10 * largest):g} for the {largest:,} "
            "records of the largest party; δ is the chance of the worst case, so keep it small against one in n"
        )
    if plan.privacy.style == "none":
        told += [
            f"style = 'none' spends without limit, and dataset '{party.dataset}' of party '{party.name}' is not "
            "declared public by the task; the ledger refuses it unless it was declared public there"
            for party in taking_part(plan, parties)
            if not party.public
        ]
    if plan.federation.sampling.kind == "poisson" and plan.privacy.style != "none":
        told.append(
            "federation.sampling draws parties by chance; records gain nothing from that (the steps of a round share "
            "one draw), so every party is charged every round in full"
        )
    if plan.privacy.noise == "fast" and plan.privacy.style != "none":
        told.append("privacy.noise = 'fast' is not floating-point safe; the guarantee says so")
    return tuple(told)


# ------------------------------------------------------------------------------------------------- whens


def _record(plan: Plan) -> RecordPlan:
    from quietsum.plan.values import RecordPlan

    return plan.privacy.record or RecordPlan()


def _largest(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    return max((party.size for party in taking_part(plan, parties)), default=0)


def _stated(plan: Plan, names: Iterable[str]) -> str:
    """Which of the keys of ``privacy.record`` are stated, as "privacy.record.epsilon and .delta"."""
    record = _record(plan)
    stated = [name for name in names if getattr(record, name) is not None]
    return " and ".join([f"privacy.record.{stated[0]}", *(f".{name}" for name in stated[1:])]) if stated else ""


def _client_level(plan: Plan) -> bool:
    return plan.privacy.style in ("user", "hybrid")


def _client_style(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return f"privacy.style = '{plan.privacy.style}'" if _client_level(plan) else ""


def _client_unasked(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.client is None or _client_level(plan):
        return ""
    return f"privacy.client beside privacy.style = '{plan.privacy.style}'"


def _promise_without_style(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.style != "none":
        return ""
    stated = _stated(plan, ("epsilon", "noise_multiplier", "delta", "lifetime"))
    stated = stated or ("privacy.preset" if plan.privacy.preset else "")
    return f"{stated} beside privacy.style = 'none'" if stated else ""


def _no_promise(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.style != "sample" or plan.privacy.preset or _stated(plan, ("epsilon", "noise_multiplier")):
        return ""
    return "privacy.style = 'sample' without a number"


def _noise_with_target(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    record = _record(plan)
    if record.epsilon is None or record.noise_multiplier is None:
        return ""
    return (
        f"privacy.record states noise_multiplier = {record.noise_multiplier:g} together with "
        f"epsilon = {record.epsilon:g}"
    )


def _preset_with_numbers(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated = _stated(plan, ("epsilon", "noise_multiplier", "delta"))
    return f"privacy.preset = '{plan.privacy.preset}' together with {stated}" if plan.privacy.preset and stated else ""


def _no_delta(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.style != "sample" or plan.privacy.preset or _record(plan).delta is not None:
        return ""
    largest = _largest(plan, parties)
    hint = f" (1/(10 n) is {1 / (10 * largest):.1g} here)" if largest else ""
    return f"privacy.record.delta is missing{hint}" if _stated(plan, ("epsilon", "noise_multiplier")) else ""


def _large_delta(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    largest, record = _largest(plan, parties), _record(plan)
    lifetime = record.lifetime.delta if record.lifetime else None
    stated = {"privacy.record.delta": record.delta, "privacy.record.lifetime.delta": lifetime}
    if plan.privacy.style == "none" or not largest:
        return ""
    too_large = [f"{name} = {delta:g}" for name, delta in stated.items() if delta is not None and delta * largest >= 1]
    return f"{' and '.join(too_large)} is not below 1/n for n = {largest:,} records" if too_large else ""


def _small_lifetime(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    record = _record(plan)
    if record.lifetime is None:
        return ""
    for name in ("epsilon", "delta"):
        own, whole = getattr(record, name), getattr(record.lifetime, name)
        if own is not None and own > whole:
            return f"privacy.record.lifetime.{name} = {whole:g} is less than privacy.record.{name} = {own:g}"
    return ""


def _secure(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return "aggregation.secure = true" if plan.aggregation.secure else ""


def _secure_with_individuals(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    rule = plan.aggregation.rule
    return f"aggregation.secure with rule = '{rule}'" if plan.aggregation.secure and rule in NEEDS_INDIVIDUALS else ""


def _secure_with_few(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count = len(taking_part(plan, parties))
    return f"aggregation.secure with {count} parties" if plan.aggregation.secure and count < 3 else ""


def _other_rule(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return "" if plan.aggregation.rule == "mean" else f"aggregation.rule = '{plan.aggregation.rule}'"


def _private_weights(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if _client_level(plan) and plan.aggregation.weights == "size":
        return f"aggregation.weights = 'size' under privacy.style = '{plan.privacy.style}'"
    return ""


def _two_batches(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    both = plan.training.batch_size is not None and plan.training.sample_rate is not None
    return "training.batch_size together with training.sample_rate" if both else ""


def _two_lengths(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    both = plan.training.local_epochs is not None and plan.training.local_steps is not None
    return "training.local_epochs together with training.local_steps" if both else ""


def _large_batch(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    batch = plan.training.batch_size
    small = [party for party in taking_part(plan, parties) if batch is not None and 0 < party.size < batch]
    if batch is None or not small:
        return ""
    named = _listed([f"'{party.name}' ({party.size:,})" for party in small])
    return f"training.batch_size = {batch:,} is more than the declared size of {named}"


def _duplicates(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    for where, names in (
        ("federation.parties", list(plan.federation.parties)),
        ("federation.simulate.refusing", list(plan.federation.simulate.refusing)),
        ("the task", [party.name for party in parties]),
    ):
        twice = [f"'{name}'" for name, count in Counter(names).items() if count > 1]
        if twice:
            return f"{where} names {_listed(twice)} more than once"
    return ""


def _unknown(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    known = [party.name for party in parties]
    told = []
    for where, names in (
        ("federation.parties", plan.federation.parties),
        ("federation.simulate.refusing", plan.federation.simulate.refusing),
    ):
        for name in dict.fromkeys(names):
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                told.append(f"{where} names '{name}'" + (f" (did you mean '{close[0]}'?)" if close else ""))
    return _listed(told) if known else ""


def _nobody(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return "" if parties else f"task '{plan.task.name}' declares no parties"


def _no_data(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    empty = [f"'{party.name}'" for party in taking_part(plan, parties) if party.size == 0]
    return f"{_listed(empty)} declares no records" if empty else ""


def _too_many_wanted(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count = len(taking_part(plan, parties))
    if not parties or plan.federation.minimum_parties <= count:
        return ""
    return f"federation.minimum_parties = {plan.federation.minimum_parties} with {count} parties"


def _cohort_rate(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    sampling = plan.federation.sampling
    if (sampling.kind == "poisson") == (sampling.rate is not None):
        return ""
    stated = "without a rate" if sampling.rate is None else "with a rate"
    return f"federation.sampling of kind '{sampling.kind}' {stated}"


def _other_engine(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return "" if plan.training.engine in ("auto", "numpy") else f"training.engine = '{plan.training.engine}'"


def _listed(items: Sequence[str], most: int = 5) -> str:
    shown = list(items[:most]) + ([f"{len(items) - most} more"] if len(items) > most else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}" if shown else ""


# ------------------------------------------------------------------------------------------- the table

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        name="client-level",
        when=_client_style,
        why="client-level privacy is not in this version yet",
        instead='say style = "sample" to protect each record',
    ),
    Refusal(
        name="client-unasked",
        when=_client_unasked,
        why="a promise to clients that this style does not keep must not stand in a plan",
        instead="remove privacy.client",
    ),
    Refusal(
        name="promise-without-style",
        when=_promise_without_style,
        why="style none gives NO PRIVACY GUARANTEE, and a number beside it reads like one",
        instead='remove it, or say style = "sample"',
    ),
    Refusal(
        name="no-promise",
        when=_no_promise,
        why="the noise follows from the promise",
        instead='state record = { epsilon = 1.0, delta = 1e-5 }, or preset = "privacy_medium", or style = "none"',
    ),
    Refusal(
        name="noise-with-target",
        when=_noise_with_target,
        why="the noise follows from a target ε and the ε from a noise, so one of them would be wrong",
        instead="keep epsilon to have the noise calibrated, or noise_multiplier to have ε computed",
    ),
    Refusal(
        name="preset-with-numbers",
        when=_preset_with_numbers,
        why="a preset is a promise of its own, and two promises cannot both be kept",
        instead="keep one of them",
    ),
    Refusal(
        name="no-delta",
        when=_no_delta,
        why="an ε means nothing without its δ",
        instead="state it, at most 1/(10 n) for the n records of the largest party",
    ),
    Refusal(
        name="delta-too-large",
        when=_large_delta,
        why="at δ = 1/n a mechanism may publish one record in full and still keep its promise",
        instead="choose at most 1/(10 n)",
    ),
    Refusal(
        name="lifetime-below-plan",
        when=_small_lifetime,
        why="the run alone would spend more than the dataset may ever spend",
        instead="raise the lifetime budget, or promise less in this run",
    ),
    Refusal(
        name="secure-aggregation",
        when=_secure,
        why="secure aggregation is not in this version yet",
        instead="say secure = false; record-level noise is added at each party, before the server sees anything",
    ),
    Refusal(
        name="secure-with-individuals",
        when=_secure_with_individuals,
        why="secure aggregation shows the server one sum, so this rule has no single updates to judge",
        instead='say rule = "mean", or secure = false',
    ),
    Refusal(
        name="secure-with-few",
        when=_secure_with_few,
        why="of a sum of two, each knows the other's share by subtracting its own",
        instead="take at least three parties, or say secure = false",
    ),
    Refusal(
        name="other-rule",
        when=_other_rule,
        why="rules other than the mean are not in this version yet",
        instead='say rule = "mean"',
    ),
    Refusal(
        name="private-weights",
        when=_private_weights,
        why="a client's number of records is its own secret there, and weighing by it gives it away",
        instead='say weights = "equal"',
    ),
    Refusal(
        name="two-batches",
        when=_two_batches,
        why="both say how many records are drawn",
        instead="keep batch_size (records a batch) or sample_rate (alike at all parties)",
    ),
    Refusal(
        name="two-lengths",
        when=_two_lengths,
        why="both say how long a round is",
        instead="keep local_epochs or local_steps",
    ),
    Refusal(
        name="batch-too-large",
        when=_large_batch,
        why="no rate above 1 exists to draw such a batch",
        instead="choose a smaller batch_size, or sample_rate, which fits parties of all sizes",
    ),
    Refusal(
        name="duplicate-parties",
        when=_duplicates,
        why="charges and budgets are kept by name, so a name must mean one party",
        instead="name each party once",
    ),
    Refusal(
        name="unknown-parties",
        when=_unknown,
        why="the task has no such party",
        instead="name parties as `quietsum plan` lists them",
    ),
    Refusal(
        name="no-parties",
        when=_nobody,
        why="there is nobody to ask",
        instead="choose another task, or options with which it has parties",
    ),
    Refusal(
        name="no-data",
        when=_no_data,
        why="a party without records has nothing to train on, and its rate would be undefined",
        instead="leave it out of federation.parties",
    ),
    Refusal(
        name="minimum-too-high",
        when=_too_many_wanted,
        why="no round could ever succeed",
        instead="lower minimum_parties or name more parties",
    ),
    Refusal(
        name="cohort-rate",
        when=_cohort_rate,
        why="the chance of being asked belongs to kind poisson, and to nothing else",
        instead='write sampling = { kind = "poisson", rate = 0.1 } or sampling = { kind = "everyone" }',
    ),
    Refusal(
        name="other-engine",
        when=_other_engine,
        why="this task is plain numpy",
        instead='say engine = "auto" or engine = "numpy"',
    ),
)
"""The table. New rows go to its end; a test asks each for a plan that it refuses and a neighbour that it lets pass."""
