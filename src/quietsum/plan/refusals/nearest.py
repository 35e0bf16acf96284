"""The nearest plan that is possible: which keys to change, and to what, so that no row refuses any more.

Each row has moves, changes of a few keys that would satisfy it. A search goes from the refused plan through the moves
of a row that still applies, fewest changed keys first, and only offers a plan against which *every* row was held:
what is proposed here is accepted. No move touches a stated ε, and none takes a promise away; a move that shows the
server more says so. Where nothing within :data:`MOST` changed keys is possible, nothing is proposed.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from quietsum.aggregation import RULES, most_attackers
from quietsum.errors import QuietsumError
from quietsum.plan.refusals.groups import hiding_enough
from quietsum.plan.refusals.robust import attackers_of, cohort_of, rule_of, smallest_rate
from quietsum.plan.refusals.row import RefusalRow, client_of, largest, record_of, taking_part

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["MOST", "MOVES", "PARAMETERS", "Change", "nearest"]

MOST = 6
"""Changed keys beyond which a plan is not near."""
PARAMETERS = "secure-parameters"
"""Stands for a row where :func:`quietsum.plan.secure.secure_plan` refuses."""
_SHOWN = 3
_LOOKED_AT = 400
_ROOT = 100
"""Rows of a root set that is proposed; every task that comes with quietsum has so many to spare."""
_SEEN = "the server then sees single updates"
_BELIEVED = "which withstands no attacker"

Keys = dict[str, Any]
Move = tuple[Keys, str]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Keys with their new values, None for a key that is left out, and what the change gives up ("" for nothing).

    >>> str(Change(keys={"aggregation.attackers": 2, "aggregation.threshold": None}))
    'aggregation.attackers = 2, no aggregation.threshold'
    """

    keys: Mapping[str, Any]
    price: str = ""

    def __str__(self) -> str:
        told = ", ".join(
            f"{key} = {_toml(value)}" if value is not None else f"no {key}" for key, value in self.keys.items()
        )
        return f"{told} ({self.price})" if self.price else told

    def apply(self, plan: Plan) -> Plan:
        """``plan`` with these keys; raises :class:`~quietsum.errors.InvalidParameter` where a value is impossible."""
        grouped: dict[str, Keys] = {}
        for key, value in self.keys.items():  # siblings together: a kind and its size are checked as one value
            table, _, name = key.rpartition(".")
            grouped.setdefault(table, {})[name] = value
        for table, fields in grouped.items():
            plan = _replace(plan, table.split(".") if table else (), fields)
        return plan


def nearest(plan: Plan, parties: Sequence[PartyFacts], rows: Sequence[RefusalRow]) -> tuple[Change, ...]:
    """Up to three plans that no row of ``rows`` refuses, by the fewest changed keys or one more; () if none is near."""
    waiting: list[tuple[int, int, Change]] = [(0, 0, Change(keys={}))]
    seen: set[str] = set()
    offered: list[Change] = []
    looked = 0
    while waiting and looked < _LOOKED_AT:
        cost, _, change = heapq.heappop(waiting)
        if offered and (len(offered) == _SHOWN or cost > len(offered[0].keys) + 1):
            break
        try:
            now = change.apply(plan)
        except QuietsumError:
            continue
        applies = next((row.name for row in rows if row.when(now, parties)), "") or _unmaskable(now, parties)
        looked += 1
        if not applies:
            if not change.keys:
                return ()
            if not any(one.keys.items() <= change.keys.items() for one in offered):  # the rest is not needed
                offered.append(change)
            continue
        for keys, price in MOVES.get(applies, _none)(now, parties):
            after = {**change.keys, **keys}
            if len(after) > MOST or set(keys) & set(change.keys) or not keys:
                continue
            known = repr(sorted(after.items(), key=lambda item: item[0]))
            if known not in seen:
                seen.add(known)
                prices = "; ".join(dict.fromkeys(one for one in (change.price, price) if one))
                heapq.heappush(waiting, (len(after), len(seen), Change(keys=after, price=prices)))
    return tuple(offered)


def _unmaskable(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    """:data:`PARAMETERS` where no parameters of secure aggregation fit, although no row applies."""
    from quietsum.plan.secure import secure_plan

    try:
        secure_plan(plan, taking_part(plan, parties))
    except QuietsumError:
        return PARAMETERS
    return ""


def _replace(value: Any, path: Sequence[str], fields: Keys) -> Any:
    if not path:
        return dataclasses.replace(value, **fields)
    below = getattr(value, path[0])
    if below is None:
        below = record_of(_promising(value)) if path[0] == "record" else client_of(_promising(value))
    return dataclasses.replace(value, **{path[0]: _replace(below, path[1:], fields)})


def _promising(privacy: Any) -> Any:
    """A plan that promises what ``privacy`` does."""
    from quietsum.plan.values import Plan

    return Plan(privacy=privacy)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return json.dumps(str(value) if not isinstance(value, bool | int) else value, ensure_ascii=False)


# ----------------------------------------------------------------------------------------------- moves


def _none(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    return iter(())


def _to(*moves: tuple[Keys, str] | Keys) -> Callable[[Plan, Sequence[PartyFacts]], Iterator[Move]]:
    """Moves that are the same for every plan."""
    fixed: list[Move] = [move if isinstance(move, tuple) else (move, "") for move in moves]
    return lambda plan, parties: iter(fixed)


def _small_delta(count: int) -> float:
    """A power of ten, at most 1/(10 n) and 1e-5.

    >>> _small_delta(200), _small_delta(200_000)
    (1e-05, 1e-07)
    """
    return float(f"1e-{max(5, len(str(10 * max(count, 1) - 1)))}")


def withstanding(attackers: int, cohort: int, *, besides: str = "") -> list[str]:
    """Rules of general use that work with ``attackers`` of ``cohort``, in the order in which they are proposed.

    Not among them: rules against one kind of attack, rules that only bound lengths, and those that need a root set.
    """
    proposed = ("signguard", "trimmed-mean", "median", "multi-krum", "geometric-median", "krum")
    return [
        name for name in proposed if name != besides and name in RULES and RULES[name].facts.least(attackers) <= cohort
    ]


def _few_for_rule(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    name, attackers = plan.aggregation.rule, attackers_of(plan, parties)
    cohort, count = cohort_of(plan, parties), len(taking_part(plan, parties))
    rule = rule_of(plan)
    if rule is None:
        return
    most, least = most_attackers(rule, cohort), rule.facts.least(attackers)
    if plan.aggregation.before:
        yield {"aggregation.before": ""}, ""
    if most > 0:
        yield {"aggregation.attackers": most}, ""
    for other in withstanding(attackers, cohort, besides=name)[:1]:
        yield {"aggregation.rule": other}, ""
    if plan.federation.sampling.size is not None and least <= count:
        yield {"federation.sampling.size": least}, ""
    if most <= 0:
        if most == 0 and plan.aggregation.attackers:
            yield {"aggregation.attackers": 0}, _BELIEVED
        yield from _mean(plan, parties)
    elif plan.aggregation.secure:  # one sum shows no single updates: the mean is the other way out
        yield from _mean(plan, parties)


def _without_root(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    options = dict(plan.task.options)
    if options.get("start") != "public":  # a start that is fitted to the rows that a root set is taken from
        yield {"task.options": {**options, "root": _ROOT}}, f"{_ROOT} published rows are then tried and not scored"
    for name in withstanding(attackers_of(plan, parties), cohort_of(plan, parties))[:1]:
        yield {"aggregation.rule": name}, ""


def _not_before(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    if plan.aggregation.rule != "mean":
        yield {"aggregation.before": "nnm"}, ""
    yield {"aggregation.before": ""}, ""


def _short_cohort(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    attackers, count = attackers_of(plan, parties), len(taking_part(plan, parties))
    if plan.federation.sampling.kind == "poisson":
        if (rate := smallest_rate(plan, parties)) is not None:
            yield {"federation.sampling.rate": rate}, ""
        for fewer in range(attackers - 1, 0, -1):
            yield {"aggregation.attackers": fewer}, ""
        rule = rule_of(plan)
        size = max(cohort_of(plan, parties), 1 if rule is None else rule.facts.least(attackers))
        if size <= count:
            yield (
                {
                    "federation.sampling.kind": "fixed-size",
                    "federation.sampling.rate": None,
                    "federation.sampling.size": size,
                },
                "",
            )
        yield {"federation.sampling.kind": "everyone", "federation.sampling.rate": None}, ""
    else:
        for fewer in range(attackers - 1, 0, -1):
            yield {"aggregation.attackers": fewer}, ""
    for key in ("drop_outs", "stragglers"):
        if getattr(plan.federation.simulate, key):
            yield {f"federation.simulate.{key}": 0.0}, ""
    yield from _mean(plan, parties)


def _mean(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    keys: Keys = {"aggregation.rule": "mean"}
    if plan.aggregation.attackers:
        keys["aggregation.attackers"] = None
    yield keys, _BELIEVED


def _attackers_of_mean(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    for name in withstanding(plan.aggregation.attackers or 0, cohort_of(plan, parties))[:1]:
        yield {"aggregation.rule": name}, ""
    yield {"aggregation.attackers": None}, _BELIEVED


def _with_individuals(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    from quietsum.plan.groups import nearest_groups

    count, attackers = cohort_of(plan, parties), plan.aggregation.attackers
    groups = nearest_groups(count, attackers) if attackers else count // 5
    if groups and groups >= 3:
        yield {"aggregation.groups": groups}, "the rule then sees the means of random groups"
    yield from _mean(plan, parties)
    yield {"aggregation.secure": False}, _SEEN


def _no_groups(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    for keys, price in _mean(plan, parties):
        yield {**keys, "aggregation.groups": 1}, price


def _other_groups(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    """Fewer and larger groups where too few honest are in one, more and smaller ones where attackers touch too many."""
    from quietsum.plan.groups import most_in_bound, nearest_groups

    count, stated = cohort_of(plan, parties), plan.aggregation
    if count // stated.groups < 4 and count // 4 >= 3:
        yield {"aggregation.groups": count // 4}, ""
    if (most := hiding_enough(plan, parties)) is not None:
        yield {"aggregation.groups": most}, ""
    if stated.drop_outs:
        yield {"aggregation.drop_outs": 0.0}, ""
    if (near := nearest_groups(count, max(stated.attackers or 1, 1))) is not None and near > stated.groups:
        yield {"aggregation.groups": near}, ""
    if stated.attackers and count >= 2 * stated.groups and (bears := most_in_bound(count, stated.groups)):
        yield {"aggregation.attackers": min(bears, stated.attackers)}, ""
    yield from _no_groups(plan, parties)


def _rule_of_groups(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    for name in withstanding(1, plan.aggregation.groups, besides=plan.aggregation.rule)[:1]:
        yield {"aggregation.rule": name}, ""
    if plan.aggregation.rule == "mean":
        yield {"aggregation.groups": 1}, ""
    elif (rule := rule_of(plan)) is not None and rule.facts.least(1) > plan.aggregation.groups:
        yield {"aggregation.groups": rule.facts.least(1)}, ""


def _other_rule(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    import difflib

    known = ["mean", *RULES]
    close = difflib.get_close_matches(plan.aggregation.rule.lower(), known, n=1, cutoff=0.5)
    for name in close or ["mean"]:
        yield {"aggregation.rule": name}, _BELIEVED if name == "mean" else ""


def _masks_unasked(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    defaults: Keys = {
        "threshold": None,
        "adversary": "curious",
        "colluders": 1,
        "drop_outs": None,
        "bits": 32,
        "max_update": None,
        "groups": 1,
    }
    yield (
        {f"aggregation.{name}": value for name, value in defaults.items() if getattr(plan.aggregation, name) != value},
        "",
    )
    yield {"aggregation.secure": True}, ""


def _count_summed(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    """Over how many parties a masked sum goes."""
    count = len(taking_part(plan, parties))
    return min(plan.federation.sampling.size or count, count)


def _few_honest(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    if _count_summed(plan, parties) > 3:
        yield {"aggregation.colluders": _count_summed(plan, parties) - 3}, ""
    yield {"aggregation.secure": False}, _SEEN


def _low_floor(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    count = _count_summed(plan, parties)
    lost = count - plan.aggregation.colluders - 2
    if plan.aggregation.drop_outs is None:
        yield {"aggregation.threshold": count - lost}, ""
    else:
        yield {"aggregation.drop_outs": math.floor(1000 * lost / count) / 1000}, ""


def _threshold(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"aggregation.threshold": None}, ""
    yield {"aggregation.threshold": (_count_summed(plan, parties) + plan.aggregation.colluders) // 2 + 1}, ""


def _parameters(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    stated = plan.aggregation
    if stated.threshold is not None:
        yield from _threshold(plan, parties)
    if stated.drop_outs:
        yield {"aggregation.drop_outs": 0.1 if stated.drop_outs > 0.1 else 0.0}, ""
    if stated.drop_outs is None:
        yield {"aggregation.drop_outs": 0.0}, ""
    if stated.groups > 1:
        yield from _other_groups(plan, parties)
    yield {"aggregation.secure": False}, _SEEN


def _coin_cohort(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    size = max(round((plan.federation.sampling.rate or 0) * len(taking_part(plan, parties))), 1)
    for more in (size, min(max(size, 5), len(taking_part(plan, parties)))):
        yield (
            {
                "federation.sampling.kind": "fixed-size",
                "federation.sampling.rate": None,
                "federation.sampling.size": more,
            },
            "",
        )
    yield {"federation.sampling.kind": "everyone", "federation.sampling.rate": None}, ""


def _without_secure(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    whose = "record" if plan.privacy.style.records and record_of(plan).noise_at == "distributed" else "client"
    yield {f"privacy.{whose}.noise_at": "party"}, "every party then adds all of the noise"
    yield {"aggregation.secure": True}, ""


def _one_step(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    keys: Keys = {"training.local_steps": 1}
    if plan.training.local_epochs is not None:
        keys["training.local_epochs"] = None
    yield keys, ""


def _one_rate(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    sizes = [party.size for party in taking_part(plan, parties)]
    rate = (plan.training.batch_size or 0) * len(sizes) / max(sum(sizes), 1)
    yield {"training.batch_size": None, "training.sample_rate": float(f"{rate:.3g}")}, ""


def _no_momentum(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    keys: Keys = {}
    if plan.training.optimizer.momentum:
        keys["training.optimizer.momentum"] = 0.0
    if plan.training.proximal:
        keys["training.proximal"] = 0.0
    yield keys, ""


def _smaller_batch(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    sizes = [party.size for party in taking_part(plan, parties) if party.size]
    if sizes:
        yield {"training.batch_size": min(sizes)}, ""


def _with_data(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"federation.parties": tuple(party.name for party in taking_part(plan, parties) if party.size)}, ""


def _fewer_wanted(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"federation.minimum_parties": len(taking_part(plan, parties))}, ""


def _smaller_cohort(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"federation.sampling.size": len(taking_part(plan, parties))}, ""


def _record_delta(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    small, record, person = _small_delta(largest(plan, parties)), record_of(plan), plan.privacy.person
    keys: Keys = {}
    if record.delta is None and (person is None or person.delta is None):
        keys["privacy.record.delta"] = small
    for key, delta in (
        ("privacy.record.delta", record.delta),
        ("privacy.record.lifetime.delta", record.lifetime.delta if record.lifetime else None),
        ("privacy.person.delta", person.delta if person else None),
    ):
        if delta is not None and delta > small:
            keys[key] = small
    yield keys, ""


def _client_delta(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    client, small = client_of(plan), _small_delta(len(taking_part(plan, parties)))
    keys: Keys = {"privacy.client.delta": small} if client.delta is None or client.delta > small else {}
    if client.lifetime is not None and client.lifetime.delta > small:
        keys["privacy.client.lifetime.delta"] = small
    yield keys, ""


def _lifetime(whose: str) -> Callable[[Plan, Sequence[PartyFacts]], Iterator[Move]]:
    def moves(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
        own: Any = record_of(plan) if whose == "record" else client_of(plan)
        keys = {
            f"privacy.{whose}.lifetime.{name}": getattr(own, name)
            for name in ("epsilon", "delta")
            if getattr(own, name) is not None and getattr(own, name) > getattr(own.lifetime, name)
        }
        yield keys, "the dataset may then spend that much over all runs"

    return moves


# ------------------------------------------------------------------------------------- promises, names, drills


def _promise(whose: str) -> Callable[[Plan, Sequence[PartyFacts]], Iterator[Move]]:
    """A promise where a style asks for one and none is stated: no stated number is changed."""

    def moves(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
        own: Any = record_of(plan) if whose == "record" else client_of(plan)
        count = largest(plan, parties) if whose == "record" else len(taking_part(plan, parties))
        keys: Keys = {f"privacy.{whose}.epsilon": 1.0 if whose == "record" else 8.0}
        if own.delta is None:
            keys[f"privacy.{whose}.delta"] = _small_delta(count)
        yield keys, "a promise to begin with"

    return moves


def _one_promise(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"privacy.preset": None}, ""
    record = record_of(plan)
    stated = [name for name in ("epsilon", "noise_multiplier", "delta") if getattr(record, name) is not None]
    yield {f"privacy.record.{name}": None for name in stated}, ""


def _right_draw(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    drawn = plan.federation.sampling
    kind = "poisson" if drawn.rate is not None else "fixed-size" if drawn.size is not None else "everyone"
    keys: Keys = {"federation.sampling.kind": kind} if kind != drawn.kind else {}
    if drawn.rate is not None and drawn.size is not None:
        keys["federation.sampling.size"] = None
    yield keys, ""


def _right_names(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    import difflib

    known, federation = {party.name: None for party in parties}, plan.federation
    keys: Keys = {}
    for key, names in (("federation.parties", federation.named),
                       ("federation.simulate.refusing", federation.simulate.refusing)):  # fmt: skip
        close = [one for name in names for one in difflib.get_close_matches(name, known, n=1, cutoff=0.5)]
        if names and tuple(dict.fromkeys(close)) != tuple(names):
            keys[key] = tuple(dict.fromkeys(close))
    yield keys, ""


def _all_rounds(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"federation.rounds": sum(stage.rounds for stage in plan.schedule)}, ""


def _attackers_of_drill(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    present = [party.name for party in taking_part(plan, parties)]
    if plan.attack is None or len(present) < 2:
        return
    asked = plan.attack.parties if isinstance(plan.attack.parties, int) else len(plan.attack.parties)
    yield {"attack.parties": max(min(asked, len(present) - 1), 1)}, ""


def _no_drill(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    yield {"attack": None}, "which is no drill"


def _drill_behind_masks(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    if plan.attack is not None and plan.attack.on_rows:
        yield {"attack.strength": None}, ""
    else:
        yield {"attack.kind": "label-flip", "attack.strength": None}, ""
    yield {"aggregation.secure": False}, _SEEN


def _whole_run(plan: Plan, parties: Sequence[PartyFacts]) -> Iterator[Move]:
    assert plan.attack is not None
    keys: Keys = {"attack.from_round": 1} if plan.attack.from_round != 1 else {}
    if plan.attack.to_round is not None and plan.attack.on_rows:
        keys["attack.to_round"] = None
    yield keys, ""


_POISSON = {"training.batches": "poisson"}
_ZERO_OUT = {"privacy.neighbours": "zero-out"}

MOVES: dict[str, Callable[[Plan, Sequence[PartyFacts]], Iterator[Move]]] = {
    "rule-without-root": _without_root,
    "before-of-mean": _not_before,
    "bucketing-with-memory": _not_before,
    "few-for-rule": _few_for_rule,
    "short-cohort-for-rule": _short_cohort,
    "rule-with-weights": _to({"aggregation.weights": None}),
    "attackers-of-mean": _attackers_of_mean,
    "other-rule": _other_rule,
    "secure-with-individuals": _with_individuals,
    "central-noise-after-rule": lambda plan, parties: iter(
        [({"privacy.client.noise_at": "party"}, "each update then carries all of the noise"), *_mean(plan, parties)]
    ),
    "minimum-with-clients": _to({"federation.minimum_parties": 1}),
    "minimum-too-high": _fewer_wanted,
    "cohort-too-large": _smaller_cohort,
    "private-weights": _to({"aggregation.weights": None}),
    "fixed-size-neighbours": _to(_ZERO_OUT),
    "party-noise-neighbours": _to(_ZERO_OUT),
    "against-the-server": _to(
        {"privacy.client.noise_at": "distributed"}, {"privacy.client.noise_at": "party"}
    ),
    "adaptive-at-party": _to({"privacy.client.adaptive": None}),
    "adaptive-with-clips": _to({"privacy.client.adaptive": None}),
    "client-unasked": _to({"privacy.client": None}),
    "no-client-delta": _client_delta,
    "client-delta-too-large": _client_delta,
    "client-noise-with-target": _to({"privacy.client.noise_multiplier": None}),
    "client-lifetime-below-plan": _lifetime("client"),
    "secure-unasked": _masks_unasked,
    "secure-with-few": _to(({"aggregation.secure": False}, _SEEN)),
    "too-few-honest": _few_honest,
    "floor-too-low": _low_floor,
    "groups-with-mean": _rule_of_groups,
    "groups-too-small": _other_groups,
    "groups-few-honest": _other_groups,
    "groups-contaminated": _other_groups,
    "groups-few-for-rule": _rule_of_groups,
    "groups-with-memory": _rule_of_groups,
    PARAMETERS: _parameters,
    "threshold-too-low": _threshold,
    "threshold-for-lies": _threshold,
    "threshold-too-high": _threshold,
    "secure-coin-cohort": _coin_cohort,
    "secure-with-central-noise": _to(
        {"privacy.client.noise_at": "distributed"}, {"privacy.client.noise_at": "party"},
        ({"aggregation.secure": False}, _SEEN),
    ),
    "narrow-without-noise": _to({"aggregation.bits": 32}),
    "two-balls": _to({"aggregation.max_update": None}),
    "distributed-without-secure": _without_secure,
    "distributed-without-floor": _to({"aggregation.drop_outs": 0.1}, {"aggregation.drop_outs": 0.0}),
    "distributed-unasked": _to({"privacy.record.noise_at": "party"}),
    "distributed-steps": _one_step,
    "distributed-rates": _one_rate,
    "distributed-momentum": _no_momentum,
    "distributed-hybrid": _to({"privacy.record.noise_at": "party"}),
    "distributed-weights": _to({"aggregation.weights": None}),
    "distributed-fast": _to({"privacy.noise": "secure"}),
    "canaries-without-noise": _to({"training.canaries": 0}),
    "few-canaries": _to({"training.canaries": 16}, {"training.canaries": 0}),
    "canaries-in-drill": _to({"training.canaries": 0, "privacy.client.canaries": 0}),
    "canary-clients-without-noise": _to({"privacy.client.canaries": 0}),
    "canary-clients-of-fixed-cohorts": _to({"privacy.client.canaries": 0}),
    "few-canary-clients": _to({"privacy.client.canaries": 16}, {"privacy.client.canaries": 0}),
    "promise-without-style": _to({"privacy.style": "sample"}),
    "record-unasked": _to({"privacy.style": "hybrid"}),
    "no-promise": _promise("record"),
    "no-client-promise": _promise("client"),
    "cohort-rate": _right_draw,
    "duplicate-parties": _right_names,
    "unknown-parties": _right_names,
    "schedule-length": _all_rounds,
    "attack-by-strangers": _attackers_of_drill,
    "attack-by-all": _attackers_of_drill,
    "attack-on-protected": _no_drill,
    "attack-behind-masks": _drill_behind_masks,
    "attack-on-rows-for-some-rounds": _whole_run,
    "attack-after-the-end": _whole_run,
    "noise-with-target": _to({"privacy.record.noise_multiplier": None}),
    "preset-with-numbers": _one_promise,
    "no-delta": _record_delta,
    "delta-too-large": _record_delta,
    "lifetime-below-plan": _lifetime("record"),
    "two-batches": _to({"training.batch_size": None}, {"training.sample_rate": None}),
    "two-lengths": _to({"training.local_epochs": None}, {"training.local_steps": None}),
    "batch-too-large": _smaller_batch,
    "no-data": _with_data,
    "other-engine": _to({"training.engine": "auto"}),
    "other-batches": _to(_POISSON),
    "batches-without-privacy": _to(_POISSON),
    "spare-with-schedule": _to({"federation.spare_attempts": 0}),
    "person-unasked": _to({"privacy.person": None}),
}  # fmt: skip
"""What would satisfy a row, by the row's name, the mildest first. A row without moves ends the search there."""
