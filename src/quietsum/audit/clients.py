"""The client level of a plan under audit: random canary clients through the plan's own draw, clip, noise and divisor.

A canary client sends an update in a random direction of its own, three times as long as the clip bound C. What a round
releases is projected on each canary's direction, so that in units of C

    y = b + N(0, σ²)        b = 1 if the canary was in and drawn, else 0

if the aggregation is what the plan claims. The directions are orthonormal, and the other clients, whose updates are
made up, too, have nothing in them. So the ten tests of :mod:`quietsum.audit.evidence` hold exactly, two-sided: noise,
contribution, draws, and noise used again.

Beside them stands the **estimate** of Andrew, Kairouz, Oh, Oprea, McMahan and Suriyakumar (2024, "One-shot empirical
privacy estimation for federated learning", arXiv 2302.03098): the cosine of each canary with the sum of all releases.
Those of canaries that were in and of those that were out are fitted by a normal each, and ε̂ is what tells these two
normals apart at δ. It is about what somebody sees who has the finished model alone, and no bound to either side. The
paper takes N(0, 1/d) for canaries that were out; here they are measured, since made-up clients avoid their directions.

:func:`audit_clients` replays a plan's rounds with made-up clients in random directions of the model.
:func:`audit_run_clients` judges canary clients that a run itself carried, in coordinates of their own
(:mod:`quietsum.federation.canaries`): those went through the run's own draws, clip and noise. Their estimate is made of
the sums over all rounds of what was released of each.

**What the replay covers**: :func:`quietsum.federation.fold_of` and the plan's sampler, mechanism, stages and divisor,
which are the same objects as in ``quietsum run``, replayed for as many rounds as the plan has. **What it does not**:
what parties really send, whether a server runs this code, and noise that parties add. No data is read and nothing is
charged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.aggregation import Fold
from quietsum.audit.evidence import Power
from quietsum.audit.runs import frozen_plan
from quietsum.audit.trainings import read_finding, write_audit
from quietsum.audit.verdict import CanaryAudit, CanaryClaim, Conclusion, judge_canaries
from quietsum.errors import CorruptState, InvalidParameter, PlanRefused, QuietsumError
from quietsum.federation import clients_folder, clients_label, first_state, fold_of
from quietsum.learning import CanaryRecord, read_party
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.plan import Plan, ResolvedPlan, resolve
from quietsum.privacy import PrivacyUnit
from quietsum.runs import Workspace
from quietsum.tasks import task_of
from quietsum.validate import open_probability, whole_number

__all__ = [
    "CLIENT_AUDIT", "ClientAudit", "audit_clients", "audit_run_clients", "estimate_epsilon", "name_client_faults",
    "read_client_audit",
]  # fmt: skip

CLIENT_AUDIT = "client-audit.json"
"""The file beside a run that holds what its canary clients found."""

USUAL, FEWEST = 200, 4
_MOST_NUMBERS = 1 << 26  # of all canaries' directions together: half a gigabyte
_OTHERS = 16  # made-up clients whose updates are folded in a round
_LENGTH = 3.0  # of a canary's update, in clip bounds
_MOST = 100.0
_RESAMPLES, _LEAST = 200, 20  # and how many canaries of either kind an estimate needs
_WORDS = (
    ("record", "client"), ("whole batch", "whole cohort"), ("batches", "cohorts"), ("batch", "cohort"),
    ("step", "round"),
)  # fmt: skip

Floats = NDArray[np.float64]
Made = Callable[[Fold[Any]], Fold[Any]]
"""The fold under test, from the plan's own."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientAudit:
    """The result: ``tests`` against the plan's mechanism, and ``estimate``, ε̂ of the finished model, None if unknown.

    ``estimate_range`` is where nine of ten estimates lie that are made from canaries drawn again from these.
    """

    tests: CanaryAudit
    estimate: float | None
    estimate_range: tuple[float, float] | None

    @property
    def conclusion(self) -> Conclusion:
        """Contradicted, consistent or inconclusive."""
        return self.tests.conclusion

    @property
    def sentence(self) -> str:
        """The conclusion in plain words."""
        return _say(self.tests.sentence.replace("canaries", "canary clients"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        between = self.estimate_range
        return {
            **self.tests.to_dict(), "sentence": self.sentence, "unit": "client", "estimate": self.estimate,
            "estimate_range": None if between is None else list(between),
        }  # fmt: skip


def audit_clients(
    plan: Plan | ResolvedPlan,
    *,
    canaries: int | None = None,
    made: Made | None = None,
    rng: RandomSource | None = None,
) -> ClientAudit:
    """Replay the rounds of ``plan`` with made-up clients, ``canaries`` of them in or out by a coin each.

    200 canaries are usual, or half as many as the model has parameters. ``made`` puts another aggregation in place of
    the plan's own, for trials of faulty ones. Raises PlanRefused where the server adds no noise for whole clients,
    where the clip adapts, and where cohorts have a fixed size.

    Guarantees: an aggregation that draws, clips and noises as the plan says is contradicted with a chance of at most
    1e-6. No party is asked.
    """
    resolved = _resolve(plan)
    _refuse(resolved)
    random = system_randomness() if rng is None else rng
    count = _count(canaries, resolved.dimension)
    included = np.asarray(random.coins(0.5, count), dtype=np.bool_)
    frame = np.linalg.qr(random.normals((resolved.dimension, count)))[0]
    others = _make_others(frame, random)
    state = first_state(resolved, np.zeros(resolved.dimension))
    rounds, chunks, together = resolved.plan.federation.rounds, [], np.zeros(resolved.dimension)
    names = tuple(f"party-{index}" for index in range(len(resolved.parties)))
    noise = []
    for number in range(1, rounds + 1):
        own = fold_of(resolved, number, state, names)
        fold = own if made is None else made(own)
        drawn = _draw(resolved, included, random)
        mechanism = resolved.client_mechanism(number)
        assert mechanism is not None  # a plan without one is refused
        release = _release(fold, frame[:, drawn] * (_LENGTH * mechanism.max_norm), others * mechanism.max_norm, random)
        sums = release * resolved.denominator / mechanism.max_norm
        together += release
        noise.append(mechanism.event().noise_multiplier)
        seen = (sums @ frame).astype(np.float32)
        chunks.append({"steps": np.array([number - 1]), "drawn": drawn[None], "released": seen[None]})
    limit = resolved.limit_of(PrivacyUnit.CLIENT)
    delta = 1e-5 if limit is None else limit.delta
    epsilon = None if limit is None else resolved.cost(PrivacyUnit.CLIENT, rounds, delta)[1].epsilon
    rate = resolved.cohort_sampling().expected_size(1)
    claim = CanaryClaim(noise=tuple(noise), rate=rate, delta=delta, epsilon=epsilon)
    length = float(np.linalg.norm(together))
    cosines = together @ frame / length if length > 0 else np.zeros(count)
    return ClientAudit(
        tests=_in_words(judge_canaries(CanaryRecord.join(included, chunks), claim)),
        estimate=estimate_epsilon(cosines[included], cosines[~included], delta=delta),
        estimate_range=_spread(cosines[included], cosines[~included], delta),
    )


def audit_run_clients(run: str, workspace: Workspace) -> ClientAudit:
    """Judge ``run`` by the canary clients that it carried, and write ``client-audit.json`` into its folder.

    Guarantees: a run whose draws, clip and noise are those of the plan in its ledger is contradicted with a chance of
    at most 1e-6. Raises QuietsumError where it carried none, CorruptState where the record was altered.
    """
    folder = workspace.find(run)
    resolved = frozen_plan(folder, workspace)
    client = resolved.plan.privacy.client
    if client is None or not client.canaries:
        raise QuietsumError(
            f"{run} carried no canary clients, and they cannot be added afterwards; they are part of a plan: client = "
            "{ …, canaries = 200 }"
        )
    place = clients_folder(folder.path)
    own = read_party(place, clients_label(folder.run))
    if own is None:
        raise CorruptState(f"{place} is missing, and the plan of {run} has canary clients; restore it from a backup")
    limit = resolved.limit_of(PrivacyUnit.CLIENT)
    assert limit is not None  # a plan with canary clients protects clients
    noise = []
    for number in own.rounds.tolist():
        mechanism = resolved.client_mechanism(number)
        assert mechanism is not None
        noise.append(mechanism.event().noise_multiplier)
    epsilon = resolved.cost(PrivacyUnit.CLIENT, resolved.attempts, limit.delta)[1].epsilon
    rate = resolved.cohort_sampling().expected_size(1)
    claim = CanaryClaim(noise=tuple(noise) or 1.0, rate=rate, delta=limit.delta, epsilon=epsilon)
    sums, included = own.record.released.astype(np.float64).sum(0), own.record.included
    found = ClientAudit(
        tests=_in_words(judge_canaries(own.record, claim)),
        estimate=estimate_epsilon(sums[included], sums[~included], delta=limit.delta),
        estimate_range=_spread(sums[included], sums[~included], limit.delta),
    )
    write_audit(folder.path / CLIENT_AUDIT, folder.run, found.to_dict(), record=place)
    return found


def read_client_audit(folder: Path, run: str) -> dict[str, Any] | None:
    """What :func:`audit_run_clients` found last of ``run`` in ``folder``; None if it was not asked.

    Raises CorruptState if the file is anything else, or of another record.
    """
    return read_finding(folder / CLIENT_AUDIT, run, record=clients_folder(folder))


def _in_words(tests: CanaryAudit) -> CanaryAudit:
    """The same result in words of clients, cohorts and rounds."""

    return dataclasses.replace(
        tests,
        evidence=tuple(
            dataclasses.replace(one, found=_say(one.found), lesson=_say(one.lesson)) for one in tests.evidence
        ),
        powers=name_client_faults(tests.powers),
    )


def name_client_faults(powers: Sequence[Power]) -> tuple[Power, ...]:
    """The same powers with their faults in words of clients."""
    return tuple(dataclasses.replace(one, fault=_say(one.fault)) for one in powers)


def _say(text: str) -> str:
    for word, own in _WORDS:
        text = text.replace(word, own)
    return text


def _resolve(plan: Plan | ResolvedPlan) -> ResolvedPlan:
    if isinstance(plan, ResolvedPlan):
        return plan
    if not isinstance(plan, Plan):
        raise InvalidParameter("plan", type(plan).__name__, "is no plan", "pass load_plan('run.toml')")
    task = task_of(plan)
    return resolve(plan, task.parties(), task.dimension)


def _refuse(resolved: ResolvedPlan) -> None:
    """What random canary clients cannot test, with the reason."""
    if not resolved.client_level:
        raise PlanRefused(
            "this plan protects no clients as a whole, so it has no client level to audit; records are audited with "
            "quietsum train --audit 500"
        )
    if not resolved.central_noise:
        raise PlanRefused(
            "in this plan the parties add the noise, and canary clients would only test their own; audit a plan with "
            "client = { noise_at = 'server' }, or check a party's step with quietsum selfcheck"
        )
    if resolved.adaptive is not None:
        raise PlanRefused(
            "this plan adapts its clip, which canaries of one length would steer; audit it with a fixed max_norm"
        )
    if resolved.plan.federation.sampling.size is not None:
        raise PlanRefused(
            "cohorts of a fixed size have no place for canary clients; audit the plan with sampling = "
            '{ kind = "poisson", rate = … } or with everyone'
        )


def _count(canaries: int | None, dimension: int) -> int:
    if canaries is None:
        canaries = max(FEWEST, min(USUAL, dimension // 2))
    count = whole_number("canaries", canaries, FEWEST)
    if count >= dimension or count * dimension > _MOST_NUMBERS:
        room = min(dimension - 1, _MOST_NUMBERS // dimension)
        problem = f"do not fit a model of {dimension:,} parameters"
        raise InvalidParameter("canaries", canaries, problem, f"at most {room} have directions of their own")
    return count


def _make_others(frame: Floats, random: RandomSource) -> Floats:
    """Updates of made-up clients without any part in the canaries' directions: half longer than the clip, half not."""
    rows = random.normals((_OTHERS, len(frame)))
    for _ in range(2):  # once more for what rounding has left
        rows = rows - (rows @ frame) @ frame.T
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    wanted = np.where(np.arange(_OTHERS) % 2 == 0, _LENGTH, 0.5)[:, None]
    return np.asarray(rows / lengths * wanted)


def _draw(resolved: ResolvedPlan, included: NDArray[np.bool_], random: RandomSource) -> NDArray[np.bool_]:
    """Which canaries are in this round's cohort: the plan's sampler over its parties and the canaries that are in."""
    parties, inside = len(resolved.parties), np.flatnonzero(included)
    cohort = resolved.cohort_sampling().draw(parties + len(inside), random)
    drawn = np.zeros(len(included), dtype=np.bool_)
    drawn[inside[cohort[cohort >= parties] - parties]] = True
    return drawn


def _release(fold: Fold[Any], canaries: Floats, others: Floats, random: RandomSource) -> Floats:
    """What the fold makes of these updates."""
    state = fold.start()
    state, _ = fold.add_many(state, [f"other-{index}" for index in range(len(others))], others)
    if canaries.shape[1]:
        rows = np.ascontiguousarray(canaries.T)
        state, _ = fold.add_many(state, [f"canary-{index}" for index in range(len(rows))], rows)
    return np.asarray(fold.finish(state, random).step, dtype=np.float64)


# ------------------------------------------------------------------------------------------------ the estimate


def estimate_epsilon(inside: Floats, outside: Floats, *, delta: float) -> float | None:
    """ε̂ at ``delta`` of telling two fitted normals apart, N(m, s²) of ``inside`` and N(0, t²) of ``outside``.

    None with fewer than twenty values of either, and above 100. It is an estimate, and no bound.
    """
    open_probability("delta", delta)
    if min(len(inside), len(outside)) < _LEAST:
        return None
    mean, spread = float(np.mean(inside)), float(np.std(inside, ddof=1))
    usual = math.sqrt(float(np.mean(np.square(outside))))
    if not (spread > 0 and usual > 0):
        return None
    pairs = ((mean, spread, 0.0, usual), (0.0, usual, mean, spread))
    found = max(_normal_epsilon(*pair, delta) for pair in pairs)
    return found if math.isfinite(found) else None


def _spread(inside: Floats, outside: Floats, delta: float) -> tuple[float, float] | None:
    """Where the middle nine tenths of ε̂ lie, of canaries drawn again with replacement (Efron 1979)."""
    again = np.random.default_rng(0)
    found = [
        estimate_epsilon(again.choice(inside, len(inside)), again.choice(outside, len(outside)), delta=delta)
        for _ in range(_RESAMPLES if min(len(inside), len(outside)) >= _LEAST else 0)
    ]
    known = sorted(one for one in found if one is not None)
    if len(known) < _RESAMPLES:
        return None
    return known[len(known) // 20], known[-1 - len(known) // 20]


def _normal_epsilon(mean: float, spread: float, other: float, width: float, delta: float) -> float:
    """The smallest ε with P(A) − e^ε Q(A) ≤ δ for every A, of P = N(mean, spread²) and Q = N(other, width²)."""
    if _hockey_stick(mean, spread, other, width, 0.0) <= delta:
        return 0.0
    low, high = 0.0, _MOST
    if _hockey_stick(mean, spread, other, width, high) > delta:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        beyond = _hockey_stick(mean, spread, other, width, middle) > delta
        low, high = (middle, high) if beyond else (low, middle)
    return high


def _hockey_stick(mean: float, spread: float, other: float, width: float, epsilon: float) -> float:
    """P(A) − e^ε Q(A) for A = {ln p/q > ε}: with x = other + width·u a quadratic in u decides, a u² + b u + c > 0."""
    shift, ratio = (mean - other) / width, spread / width  # P is N(shift, ratio²) in u, Q is N(0, 1)
    a, b = 0.5 - 0.5 / ratio**2, shift / ratio**2
    c = -0.5 * (shift / ratio) ** 2 - math.log(ratio) - epsilon
    if abs(a) < 1e-12:
        if b == 0:
            return 0.0
        ends = [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    else:
        inside = b * b - 4 * a * c
        if inside <= 0:
            return 1.0 - math.exp(epsilon) if a > 0 else 0.0
        roots = sorted(((-b - math.sqrt(inside)) / (2 * a), (-b + math.sqrt(inside)) / (2 * a)))
        ends = [(-math.inf, roots[0]), (roots[1], math.inf)] if a > 0 else [(roots[0], roots[1])]
    own = sum(_between((low - shift) / ratio, (high - shift) / ratio) for low, high in ends)
    return own - math.exp(epsilon) * sum(_between(low, high) for low, high in ends)


def _between(low: float, high: float) -> float:
    """The standard normal's mass between two numbers, from the tail that is smaller."""
    if low > 0:
        low, high = -high, -low
    return float(special.ndtr(high) - special.ndtr(low))
