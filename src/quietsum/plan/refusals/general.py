"""Rows about any plan: its parties, its draws, its batches, and what it promises to records and people."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.aggregation import RULES, most_attackers
from quietsum.plan.refusals.robust import cohort_of, rule_of
from quietsum.plan.refusals.row import RefusalRow, largest, list_some, name_stated, record_of, taking_part

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["FEWEST_CANARIES", "NEEDS_INDIVIDUALS", "ROWS"]

FEWEST_CANARIES = 16

NEEDS_INDIVIDUALS = frozenset(name for name, rule in RULES.items() if rule.facts.needs_individuals)
"""Rules that compare single updates, which a masked sum hides."""


def _promise_without_style(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.style != "none":
        return ""
    told = name_stated(plan, ("epsilon", "noise_multiplier", "delta", "lifetime"))
    told = told or ("privacy.preset" if plan.privacy.preset else "")
    return f"{told} beside privacy.style = 'none'" if told else ""


def _no_promise(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    person = plan.privacy.person
    told = plan.privacy.preset or name_stated(plan, ("epsilon", "noise_multiplier")) or (person and person.epsilon)
    return "" if told or not plan.privacy.style.records else f"privacy.style = '{plan.privacy.style}' without a number"


def _noise_with_target(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    record, person = record_of(plan), plan.privacy.person
    if record.noise_multiplier is not None and person is not None and person.epsilon is not None:
        return f"privacy.record.noise_multiplier together with privacy.person.epsilon = {person.epsilon:g}"
    if record.epsilon is None or record.noise_multiplier is None:
        return ""
    return (
        f"privacy.record states noise_multiplier = {record.noise_multiplier:g} together with "
        f"epsilon = {record.epsilon:g}"
    )


def _preset_with_numbers(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    told = name_stated(plan, ("epsilon", "noise_multiplier", "delta"))
    return f"privacy.preset = '{plan.privacy.preset}' together with {told}" if plan.privacy.preset and told else ""


def _no_delta(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    person = plan.privacy.person
    if not plan.privacy.style.records or plan.privacy.preset or record_of(plan).delta is not None:
        return ""
    if person is not None and person.delta is not None:
        return ""
    most = largest(plan, parties)
    hint = f" (1/(10 n) is {1 / (10 * most):.1g} here)" if most else ""
    told = name_stated(plan, ("epsilon", "noise_multiplier")) or (person is not None and person.epsilon is not None)
    return f"privacy.record.delta is missing{hint}" if told else ""


def _large_delta(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    most, record = largest(plan, parties), record_of(plan)
    lifetime = record.lifetime.delta if record.lifetime else None
    person = plan.privacy.person.delta if plan.privacy.person else None
    deltas = {
        "privacy.record.delta": record.delta, "privacy.record.lifetime.delta": lifetime, "privacy.person.delta": person,
    }  # fmt: skip
    if not plan.privacy.style.records or not most:
        return ""
    too_large = [f"{name} = {delta:g}" for name, delta in deltas.items() if delta is not None and delta * most >= 1]
    return f"{' and '.join(too_large)} is not below 1/n for n = {most:,} records" if too_large else ""


def _small_lifetime(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    record = record_of(plan)
    if record.lifetime is None:
        return ""
    for name in ("epsilon", "delta"):
        own, whole = getattr(record, name), getattr(record.lifetime, name)
        if own is not None and own > whole:
            return f"privacy.record.lifetime.{name} = {whole:g} is less than privacy.record.{name} = {own:g}"
    return ""


def _other_rule(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return "" if plan.aggregation.rule in ("mean", *RULES) else f"aggregation.rule = '{plan.aggregation.rule}'"


def _few_for_rule(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    name, stated = plan.aggregation.rule, plan.aggregation.attackers
    cohort = cohort_of(plan, parties)
    rule = rule_of(plan)
    if rule is None or not taking_part(plan, parties) or plan.aggregation.groups > 1:
        return ""
    least, most = rule.facts.least(stated or 0), most_attackers(rule, cohort)
    if least <= cohort:
        return ""
    return (
        f"aggregation.rule = '{name}' with attackers = {stated or 0} needs {least} parties, and a round asks {cohort}, "
        f"of which it withstands {f'at most {most}' if most > 0 else 'none'}"
    )


def _rule_with_weights(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    robust = plan.aggregation.rule in RULES and plan.aggregation.weights == "size"
    return f"aggregation.weights = 'size' with rule = '{plan.aggregation.rule}'" if robust else ""


def _attackers_of_mean(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated = plan.aggregation.attackers
    return f"aggregation.attackers = {stated} with rule = 'mean'" if stated and plan.aggregation.rule == "mean" else ""


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
    named = list_some([f"'{party.name}' ({party.size:,})" for party in small])
    return f"training.batch_size = {batch:,} is more than the declared size of {named}"


def _duplicates(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    for where, names in (
        ("federation.parties", list(plan.federation.named)),
        ("federation.simulate.refusing", list(plan.federation.simulate.refusing)),
        ("the task", [party.name for party in parties]),
    ):
        twice = [f"'{name}'" for name, count in Counter(names).items() if count > 1]
        if twice:
            return f"{where} names {list_some(twice)} more than once"
    return ""


def _unknown(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    known = {party.name: None for party in parties}
    told = []
    for where, names in (
        ("federation.parties", plan.federation.named),
        ("federation.simulate.refusing", plan.federation.simulate.refusing),
    ):
        for name in dict.fromkeys(names):
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                told.append(f"{where} names '{name}'" + (f" (did you mean '{close[0]}'?)" if close else ""))
    return list_some(told) if known else ""


def _nobody(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return "" if parties else f"task '{plan.task.name}' declares no parties"


def _no_data(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    empty = [f"'{party.name}'" for party in taking_part(plan, parties) if party.size == 0]
    return f"{list_some(empty)} declares no records" if empty else ""


def _too_many_wanted(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count = len(taking_part(plan, parties))
    if not parties or plan.federation.minimum_parties <= count:
        return ""
    return f"federation.minimum_parties = {plan.federation.minimum_parties} with {count} parties"


def _cohort_rate(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    sampling = plan.federation.sampling
    for kind, key, value in (("poisson", "rate", sampling.rate), ("fixed-size", "size", sampling.size)):
        if (sampling.kind == kind) != (value is not None):
            return f"federation.sampling of kind '{sampling.kind}' {'without' if value is None else 'with'} a {key}"
    return ""


def _cohort_too_large(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    size, count = plan.federation.sampling.size, len(taking_part(plan, parties))
    if size is None or not parties or size <= count:
        return ""
    return f"federation.sampling.size = {size} with {count} parties"


def _other_engine(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.task.name != "heart" or plan.training.engine in ("auto", "numpy"):
        return ""
    return f"training.engine = '{plan.training.engine}'"


def _other_batches(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.training.batches == "poisson" or not plan.privacy.style.records:
        return ""
    return f"training.batches = '{plan.training.batches}' under privacy.style = '{plan.privacy.style}'"


def _batches_without_privacy(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.training.batches == "poisson" or plan.privacy.style.records:
        return ""
    return f"training.batches = '{plan.training.batches}'"


def _schedule_length(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    total = sum(stage.rounds for stage in plan.schedule)
    if not plan.schedule or total == plan.federation.rounds:
        return ""
    return f"schedule has {total} rounds, federation.rounds says {plan.federation.rounds}"


def _spare_with_schedule(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not plan.federation.spare_attempts or all(stage.noise == 1 for stage in plan.schedule):
        return ""
    return f"federation.spare_attempts = {plan.federation.spare_attempts} beside a schedule of noise"


def _holder_is_mixed(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    known: dict[str, tuple[str, str]] = {}
    for party in taking_part(plan, parties):
        if known.setdefault(party.account, (party.dataset, party.public)) != (party.dataset, party.public):
            return f"'{party.account}' holds parties of different datasets"
    return ""


def _person_unasked(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.person is None or plan.privacy.style.records:
        return ""
    return f"privacy.person beside privacy.style = '{plan.privacy.style}'"


def _canaries_without_noise(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count, style = plan.training.canaries, plan.privacy.style
    if not count or (style.records and record_of(plan).noise_at == "party"):
        return ""
    where = f" and noise_at = '{record_of(plan).noise_at}'" if style.records else ""
    return f"training.canaries = {count} under privacy.style = '{style}'{where}"


def _few_canaries(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    return f"training.canaries = {plan.training.canaries}" if 0 < plan.training.canaries < FEWEST_CANARIES else ""


def _canaries_in_drill(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count, clients = plan.training.canaries, _canary_clients(plan)
    if plan.attack is None or not (count or clients):
        return ""
    return (
        f"training.canaries = {count} beside [attack]"
        if count
        else (f"privacy.client.canaries = {clients} beside [attack]")
    )


def _canary_clients(plan: Plan) -> int:
    """How many canary clients a plan has."""
    return 0 if plan.privacy.client is None else plan.privacy.client.canaries


def _canary_clients_without_noise(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client, count = plan.privacy.client, _canary_clients(plan)
    if not count or client is None:
        return ""
    if plan.aggregation.secure:
        return f"privacy.client.canaries = {count} beside aggregation.secure"
    if client.noise_at != "server":
        return f"privacy.client.canaries = {count} with noise_at = '{client.noise_at}'"
    return f"privacy.client.canaries = {count} with an adaptive clip" if client.adaptive is not None else ""


def _canary_clients_of_fixed_cohorts(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count = _canary_clients(plan)
    return (
        f"privacy.client.canaries = {count} with cohorts of a fixed size"
        if count and (plan.federation.sampling.size is not None)
        else ""
    )


def _few_canary_clients(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count = _canary_clients(plan)
    return f"privacy.client.canaries = {count}" if 0 < count < FEWEST_CANARIES else ""


# ------------------------------------------------------------------------------------------- the table

ROWS: tuple[RefusalRow, ...] = (
    RefusalRow(
        name="promise-without-style",
        when=_promise_without_style,
        why="style none gives NO PRIVACY GUARANTEE, and a number beside it reads like one",
        instead='remove it, or say style = "sample"',
    ),
    RefusalRow(
        name="no-promise",
        when=_no_promise,
        why="the noise follows from the promise",
        instead='state record = { epsilon = 1.0, delta = 1e-5 }, or preset = "privacy_medium", or style = "none"',
    ),
    RefusalRow(
        name="noise-with-target",
        when=_noise_with_target,
        why="the noise follows from a target ε and the ε from a noise, so one of them would be wrong",
        instead="keep epsilon to have the noise calibrated, or noise_multiplier to have ε computed",
    ),
    RefusalRow(
        name="preset-with-numbers",
        when=_preset_with_numbers,
        why="a preset is a promise of its own, and two promises cannot both be kept",
        instead="keep one of them",
    ),
    RefusalRow(
        name="no-delta",
        when=_no_delta,
        why="an ε means nothing without its δ",
        instead="state it, at most 1/(10 n) for the n records of the largest party",
    ),
    RefusalRow(
        name="delta-too-large",
        when=_large_delta,
        why="at δ = 1/n a mechanism may publish one record in full and still keep its promise",
        instead="choose at most 1/(10 n)",
    ),
    RefusalRow(
        name="lifetime-below-plan",
        when=_small_lifetime,
        why="the run alone would spend more than the dataset may ever spend",
        instead="raise the lifetime budget, or promise less in this run",
    ),
    RefusalRow(
        name="other-rule",
        when=_other_rule,
        why="no rule has this name",
        instead=f"choose among mean, {', '.join(RULES)}",
    ),
    RefusalRow(
        name="few-for-rule",
        when=_few_for_rule,
        why="with fewer, those that may send anything could make the result anything they like",
        instead="state fewer attackers, ask more parties, or choose a rule that needs fewer",
    ),
    RefusalRow(
        name="rule-with-weights",
        when=_rule_with_weights,
        why="a robust rule counts every update once: a size that cannot be verified would be a lever",
        instead='say weights = "equal", or leave it out',
    ),
    RefusalRow(
        name="attackers-of-mean",
        when=_attackers_of_mean,
        why="one update can move a mean as far as it likes, so it withstands none",
        instead='say rule = "signguard" or "median", or attackers = 0',
    ),
    RefusalRow(
        name="two-batches",
        when=_two_batches,
        why="both say how many records are drawn",
        instead="keep batch_size (records a batch) or sample_rate (alike at all parties)",
    ),
    RefusalRow(
        name="two-lengths",
        when=_two_lengths,
        why="both say how long a round is",
        instead="keep local_epochs or local_steps",
    ),
    RefusalRow(
        name="batch-too-large",
        when=_large_batch,
        why="no rate above 1 exists to draw such a batch",
        instead="choose a smaller batch_size, or sample_rate, which fits parties of all sizes",
    ),
    RefusalRow(
        name="duplicate-parties",
        when=_duplicates,
        why="charges and budgets are kept by name, so a name must mean one party",
        instead="name each party once",
    ),
    RefusalRow(
        name="unknown-parties",
        when=_unknown,
        why="the task has no such party",
        instead="name parties as `quietsum plan` lists them",
    ),
    RefusalRow(
        name="no-parties",
        when=_nobody,
        why="there is no party to ask",
        instead="choose another task, or options with which it has parties",
    ),
    RefusalRow(
        name="no-data",
        when=_no_data,
        why="a party without records has nothing to train on, and its rate would be undefined",
        instead="leave it out of federation.parties",
    ),
    RefusalRow(
        name="minimum-too-high",
        when=_too_many_wanted,
        why="no round could ever succeed",
        instead="lower minimum_parties or name more parties",
    ),
    RefusalRow(
        name="cohort-rate",
        when=_cohort_rate,
        why="a rate belongs to kind poisson and a size to kind fixed-size, and to nothing else",
        instead='write { kind = "poisson", rate = 0.1 }, { kind = "fixed-size", size = 50 } or { kind = "everyone" }',
    ),
    RefusalRow(
        name="other-engine",
        when=_other_engine,
        why="this task is plain numpy",
        instead='say engine = "auto" or engine = "numpy"',
    ),
    RefusalRow(
        name="cohort-too-large",
        when=_cohort_too_large,
        why="no party can be drawn twice",
        instead="choose a smaller size, or kind everyone",
    ),
    RefusalRow(
        name="other-batches",
        when=_other_batches,
        why="the ε per record counts on every record being drawn by its own coin; other batches cost more",
        instead='say batches = "poisson"',
    ),
    RefusalRow(
        name="batches-without-privacy",
        when=_batches_without_privacy,
        why="only Poisson batches are made in this version, and a plan must say what runs",
        instead='say batches = "poisson"; with sample_rate = 1.0 every step takes all records',
    ),
    RefusalRow(
        name="schedule-length",
        when=_schedule_length,
        why="every round must know its noise before the first one",
        instead="make the stages' rounds add up to federation.rounds",
    ),
    RefusalRow(
        name="spare-with-schedule",
        when=_spare_with_schedule,
        why="the noise at which a lost round would be repeated is unknown, so it cannot be paid for in advance",
        instead="leave spare_attempts at 0, or keep the noise the same in all stages",
    ),
    RefusalRow(
        name="mixed-holder",
        when=_holder_is_mixed,
        why="one book is kept for all parties of a holder",
        instead="give parties of different datasets different holders",
    ),
    RefusalRow(
        name="person-unasked",
        when=_person_unasked,
        why="a person's ε is that of up to max_records records, and this style adds no noise for records",
        instead='say style = "sample" or "hybrid", or make each person a client of their own',
    ),
    RefusalRow(
        name="canaries-without-noise",
        when=_canaries_without_noise,
        why="an audit tests the clip and the noise of each party's steps, and such steps have none of their own",
        instead="protect records with noise at the party, or leave canaries out",
    ),
    RefusalRow(
        name="few-canaries",
        when=_few_canaries,
        why="so few say nothing",
        instead=f"carry {FEWEST_CANARIES} or more at each party, or none; one for each ten records is usual",
    ),
    RefusalRow(
        name="canary-clients-without-noise",
        when=_canary_clients_without_noise,
        why="canary clients go through the server's own clip and noise, which here it does not add to a sum of updates "
        "that it sees, or changes by what it saw",
        instead="leave canaries out, or say noise_at = 'server' with a fixed max_norm and without masks",
    ),
    RefusalRow(
        name="canary-clients-of-fixed-cohorts",
        when=_canary_clients_of_fixed_cohorts,
        why="a cohort of a fixed size has no place for them: each would keep a party away",
        instead='leave canaries out, or draw by sampling = { kind = "poisson", rate = … }',
    ),
    RefusalRow(
        name="few-canary-clients",
        when=_few_canary_clients,
        why="so few say nothing",
        instead=f"carry {FEWEST_CANARIES} or more, or none; 200 are usual",
    ),
    RefusalRow(
        name="canaries-in-drill",
        when=_canaries_in_drill,
        why="a drill promises nothing that an audit could test",
        instead="leave canaries or [attack] out",
    ),
)
