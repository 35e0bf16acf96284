"""Attacks on updates, for drills and benchmarks: what parties that are no longer honest send instead of their updates.

An attack is a function of what its attackers know (:class:`Seen`): the updates of the honest parties, those that the
attackers would have sent, and the rule in use. That is more than most real attackers know, so a rule that withstands
these attacks was tried against the strong form of each. It is no proof: somebody who knows the rule may find another
attack, and :func:`adaptive` is only one simple way to look for it.

Each attack is registered with its source and the meaning of its one number, ``strength``. Attacks on rows (label flip,
backdoors) are in :mod:`quietsum.defence.poison`.

>>> import numpy as np
>>> from quietsum.mechanisms.rng import system_randomness
>>> seen = Seen(honest=np.array([[1.0, 0.0], [3.0, 0.0]]), own=np.array([[2.0, 0.0]]), rng=system_randomness())
>>> attack_named("ipm")(seen, 0.5)
array([[-1., -0.]])
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quietsum.aggregation import Rule, Sent, Trial
from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["ATTACKS", "DIRECTIONS", "Attack", "Seen", "attack_named", "lie_deviations", "perturbation", "widest"]

Matrix = NDArray[Any]
Vector = NDArray[np.float64]

DIRECTIONS = ("rising", "falling", "unit", "sign")
"""Where LIE, Min-Max and their kin push: all coordinates up or down by their deviation, or (the latter two alone)
against the mean or against its signs. Papers speak of gradients, and push those down by the deviation; an update is a
change of the model, a negated gradient, so that is ``rising`` here. The two sides are not alike for every model."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What the attackers of one round know.

    ``honest`` (m, d) are the updates of the others, ``own`` (f, d) what the attackers would have sent had they followed
    the plan (on poisoned rows, where those are poisoned too). ``rule`` is what the server uses, None for the mean, with
    the f that it counts on (``stated``), its ``memory`` and ``trial``; ``places`` says which of the ``registered``
    parties the rows are of, the honest ones first. ``last`` is the last change of the model. ``rng`` is the attackers'
    own, never the server's.
    """

    honest: Matrix
    own: Matrix
    rng: RandomSource
    rule: Rule | None = None
    stated: int | None = None
    memory: Mapping[str, Vector] = dataclasses.field(default_factory=dict)
    trial: Trial | None = None
    places: NDArray[np.int64] | None = None
    registered: int | None = None
    last: Vector | None = None
    direction: str = DIRECTIONS[0]

    def __post_init__(self) -> None:
        own, honest = self.own, self.honest
        if own.ndim != 2 or honest.ndim != 2 or own.shape[1:] != honest.shape[1:] or not len(own):
            shapes = f"{honest.shape} and {own.shape}"
            raise InvalidParameter(
                "seen", shapes, "are no updates of honest parties and attackers", "pass two matrices"
            )
        if self.direction not in DIRECTIONS:
            raise InvalidParameter("direction", self.direction, "is unknown", f"choose among {', '.join(DIRECTIONS)}")

    @property
    def attackers(self) -> int:
        """f, how many there are."""
        return len(self.own)

    @property
    def parties(self) -> int:
        """n, attackers and others."""
        return len(self.own) + len(self.honest)

    @property
    def known(self) -> Matrix:
        """The honest updates, or where there is no honest party at all the attackers' own."""
        return self.honest if len(self.honest) else self.own

    @property
    def mean(self) -> Vector:
        """The mean honest update."""
        return np.asarray(self.known.mean(axis=0), dtype=np.float64)

    @property
    def deviation(self) -> Vector:
        """The sample deviation (n − 1) of each coordinate over the honest parties; zero where there is only one."""
        return np.asarray(self.known.std(axis=0, ddof=min(1, len(self.known) - 1)), dtype=np.float64)

    def alike(self, update: Vector) -> Matrix:
        """The same update from every attacker."""
        return np.repeat(np.asarray(update, dtype=np.float64)[None, :], self.attackers, axis=0)


Craft = Callable[[Seen, float], Matrix]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack on updates: what it does, who described it, what its ``strength`` means and is if left out.

    ``usual`` gives the strength for n parties and f attackers.
    """

    name: str
    title: str
    source: str
    meaning: str
    usual: Callable[[int, int], float]
    craft: Craft

    def __call__(self, seen: Seen, strength: float | None = None) -> Matrix:
        """(f, d): what the attackers send."""
        chosen = self.usual(seen.parties, seen.attackers) if strength is None else float(strength)
        if not math.isfinite(chosen) or chosen < 0:
            raise InvalidParameter("strength", strength, "must be a number from 0 up", self.meaning)
        return self.craft(seen, chosen)


ATTACKS: dict[str, Attack] = {}
"""Attacks on updates by name."""


def attack_named(name: str) -> Attack:
    """The attack on updates of that name."""
    if name not in ATTACKS:
        raise InvalidParameter("attack", name, "is unknown", f"choose among {', '.join(ATTACKS)}")
    return ATTACKS[name]


def _register(
    name: str, *, title: str, source: str, meaning: str, usual: float | Callable[[int, int], float]
) -> Callable[[Craft], Craft]:
    def register(craft: Craft) -> Craft:
        chosen = usual if callable(usual) else lambda parties, attackers, value=float(usual): value
        ATTACKS[name] = Attack(name=name, title=title, source=source, meaning=meaning, usual=chosen, craft=craft)
        return craft

    return register


# ----------------------------------------------------------------------------- without knowledge of the others


@_register(
    "sign-flip", title="sign flip", source="Li, Xu, Chen, Giannakis, Ling 2019 (RSA)",
    meaning="the factor of the negated update", usual=1.0,
)  # fmt: skip
def sign_flip(seen: Seen, strength: float) -> Matrix:
    """−s · the update that each attacker would have sent."""
    return -strength * seen.own


@_register(
    "gaussian", title="Gaussian noise", source="Blanchard, El Mhamdi, Guerraoui, Stainer 2017",
    meaning="the deviation of the noise, in root mean squares of an honest coordinate", usual=10.0,
)  # fmt: skip
def gaussian(seen: Seen, strength: float) -> Matrix:
    """N(0, (s · r)²) in each coordinate, r the root mean square of the honest coordinates: no absolute scale."""
    scale = float(np.sqrt(np.mean(np.square(seen.known, dtype=np.float64))))
    return strength * scale * seen.rng.normals(seen.own.shape)


@_register(
    "zero", title="free rider that sends zeros", source="Fraboni, Vidal, Lorenzi 2021 (plain free-riding)",
    meaning="nothing", usual=1.0,
)  # fmt: skip
def zero(seen: Seen, strength: float) -> Matrix:
    """No work at all: the model comes back as it is."""
    return np.zeros(seen.own.shape)


@_register(
    "free-rider", title="free rider that repeats the last change of the model",
    source="Lin, Du, Liu 2019 (delta weights); noise as in Fraboni, Vidal, Lorenzi 2021",
    meaning="the deviation of the added noise, in root mean squares of a coordinate of the last change", usual=0.1,
)  # fmt: skip
def free_rider(seen: Seen, strength: float) -> Matrix:
    """The last change of the model, which every party has seen, with a little noise of each one's own.

    Before there is one, zeros.
    """
    last = np.zeros(seen.own.shape[1]) if seen.last is None else seen.last
    scale = float(np.sqrt(np.mean(np.square(last))))
    return seen.alike(last) + strength * scale * seen.rng.normals(seen.own.shape)


@_register(
    "model-replacement", title="model replacement", source="Bagdasaryan, Veit, Hua, Estrin, Shmatikov 2020",
    meaning="the factor of the update; n/f replaces the mean", usual=lambda parties, attackers: parties / attackers,
)  # fmt: skip
def model_replacement(seen: Seen, strength: float) -> Matrix:
    """s · the attackers' own updates, of poisoned rows: with s = n/f the mean of all moves as far as theirs."""
    return strength * seen.own


# -------------------------------------------------------------------------------- close to the honest updates


def lie_deviations(parties: int, attackers: int) -> float:
    """How many deviations hide among honest updates (Baruch, Baruch, Goldberg 2019, algorithm 3).

    s = ⌊n/2 + 1⌋ − f honest parties must lie further out than the attackers for these to pass as the majority: z is
    the (n − f − s)/(n − f) quantile of a standard normal; 0 where it would be negative or there is none.

    >>> round(lie_deviations(50, 10), 4)
    0.2533
    """
    honest = parties - attackers
    supporters = parties // 2 + 1 - attackers
    share = (honest - supporters) / honest if honest > 0 else 0.0
    return float(ndtri(share)) if 0.5 < share < 1 else 0.0


@_register(
    "lie", title="a little is enough (LIE)", source="Baruch, Baruch, Goldberg 2019",
    meaning="z, how many deviations beside the mean", usual=lie_deviations,
)  # fmt: skip
def lie(seen: Seen, strength: float) -> Matrix:
    """μ + z σ, coordinate by coordinate; μ − z σ where the attackers chose to fall."""
    return seen.alike(seen.mean + strength * _side(seen))


@_register(
    "ipm", title="inner product manipulation (IPM)", source="Xie, Koyejo, Gupta 2020",
    meaning="ε, the factor of the negated mean; above (n − f)/f the mean itself turns round", usual=0.5,
)  # fmt: skip
def ipm(seen: Seen, strength: float) -> Matrix:
    """−ε μ."""
    return seen.alike(-strength * seen.mean)


def perturbation(seen: Seen, direction: str | None = None) -> Vector:
    """Where Min-Max and Min-Sum push (Shejwalkar, Houmansadr 2021, §IV-B): ±σ, −μ/‖μ‖ or −sign(μ)."""
    match direction or seen.direction:
        case "unit":
            length = float(np.linalg.norm(seen.mean))
            return -seen.mean / length if length > 0 else np.zeros_like(seen.mean)
        case "sign":
            return -np.sign(seen.mean)
        case "falling":
            return -seen.deviation
    return seen.deviation


def _side(seen: Seen) -> Vector:
    """±σ: what a LIE adds, once for each of its z."""
    return -seen.deviation if seen.direction == "falling" else seen.deviation


def widest(honest: Matrix, push: Vector, *, sums: bool) -> float:
    """The largest γ for which μ + γ · ``push`` keeps the constraint of Min-Sum (``sums``) or Min-Max.

    Min-Max asks max_i ‖μ + γp − g_i‖ ≤ max_ij ‖g_i − g_j‖; Min-Sum asks Σ_i ‖μ + γp − g_i‖² ≤ max_i Σ_j ‖g_i − g_j‖².
    Both bound quadratics in γ, so the largest γ is a root, and no bisection is needed.
    """
    rows = np.asarray(honest, dtype=np.float64)
    mean = rows.mean(axis=0)
    centred = rows - mean
    size = float(push @ push)
    if size == 0:
        return 0.0
    squares = np.einsum("ij,ij->i", centred, centred)
    between = np.maximum(squares[:, None] + squares[None, :] - 2 * centred @ centred.T, 0.0)
    if sums:
        slack = float(between.sum(axis=1).max() - squares.sum())
        return math.sqrt(max(slack, 0.0) / (len(rows) * size))
    along = -(centred @ push)  # p · (μ − g_i)
    slack = np.maximum(between.max() - squares, 0.0)
    roots = (np.sqrt(along**2 + size * slack) - along) / size
    return float(max(roots.min(), 0.0))


@_register(
    "min-max", title="Min-Max", source="Shejwalkar, Houmansadr 2021",
    meaning="the share of the largest γ that the constraint allows", usual=1.0,
)  # fmt: skip
def min_max(seen: Seen, strength: float) -> Matrix:
    """μ + γ p, no further from any honest update than the two furthest of these are from each other."""
    push = perturbation(seen)
    return seen.alike(seen.mean + strength * widest(seen.known, push, sums=False) * push)


@_register(
    "min-sum", title="Min-Sum", source="Shejwalkar, Houmansadr 2021",
    meaning="the share of the largest γ that the constraint allows", usual=1.0,
)  # fmt: skip
def min_sum(seen: Seen, strength: float) -> Matrix:
    """μ + γ p, whose squared distances to the honest updates add up to no more than those of the furthest of these."""
    push = perturbation(seen)
    return seen.alike(seen.mean + strength * widest(seen.known, push, sums=True) * push)


@_register(
    "byzmean", title="ByzMean", source="Xu, Huang, Song, Lan 2022 (SignGuard)",
    meaning="z of the LIE update that the mean of all becomes", usual=lie_deviations,
)  # fmt: skip
def byzmean(seen: Seen, strength: float) -> Matrix:
    """Half of the attackers send a LIE update g, the others what makes the mean of all parties equal to g.

    With m₁ = ⌊f/2⌋ and m₂ = f − m₁ the second half sends ((n − m₁) g − Σ honest) / m₂.
    """
    half = seen.attackers // 2
    wanted = seen.mean + strength * _side(seen)
    rest = ((seen.parties - half) * wanted - seen.honest.sum(axis=0)) / (seen.attackers - half)
    sent = seen.alike(wanted)
    sent[half:] = rest
    return sent


@_register(
    "mimic", title="mimic", source="Karimireddy, He, Jaggi 2022", meaning="nothing", usual=1.0,
)  # fmt: skip
def mimic(seen: Seen, strength: float) -> Matrix:
    """Everyone repeats one honest update, the furthest out along the direction in which honest updates differ most.

    No single vector is wrong; the others lose their weight. The direction is that of this round's updates.
    """
    rows = np.asarray(seen.known, dtype=np.float64)
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    shares = np.abs(vectors[:, -1]) * math.sqrt(max(float(values[-1]), 0.0))  # |z · (g_i − μ)| for the top direction z
    return seen.alike(rows[int(shares.argmax())])


@_register(
    "sign-matched", title="matched sign counts", source="the attack on SignGuard that Blades ships (Li et al. 2023)",
    meaning="the length, in median lengths of honest updates", usual=1.0,
)  # fmt: skip
def sign_matched(seen: Seen, strength: float) -> Matrix:
    """Random numbers with the sign counts and the length of a typical honest update, so that counts tell nothing.

    One vector for all, with the median counts of the honest updates at coordinates in a random order.
    """
    rows = np.asarray(seen.known, dtype=np.float64)
    dimension = rows.shape[1]
    plus = int(np.median((rows > 0).sum(axis=1)))
    minus = min(int(np.median((rows < 0).sum(axis=1))), dimension - plus)
    signs = np.zeros(dimension)
    signs[:plus], signs[plus : plus + minus] = 1.0, -1.0
    made = signs[seen.rng.permutation(dimension)] * seen.rng.uniforms(dimension)
    length = float(np.linalg.norm(made))
    wanted = strength * float(np.median(np.linalg.norm(rows, axis=1)))
    return seen.alike(made * (wanted / length) if length > 0 else made)


# ------------------------------------------------------------------------------------ against the rule in use

_FACTORS = (0.015, 0.03, 0.06, 0.1, 0.17, 0.3, 0.5, 1.0)


@_register(
    "adaptive", title="line search against the rule in use",
    source="in the manner of the tailored attacks of Shejwalkar, Houmansadr 2021",
    meaning="the longest push that is tried, in units of the mean or of the Min-Max push", usual=6.0,
)  # fmt: skip
def adaptive(seen: Seen, strength: float) -> Matrix:
    """The push, against the mean or along the deviation, that costs most of the honest progress under this rule.

    Progress is ⟨step, μ⟩/‖μ‖². Where no push costs half of it, the one is sent after which the step is furthest from μ.
    The rule is tried with the attackers' own randomness, since they do not know the server's. This is one way of
    adapting, on two lines, for one step at a time: that a rule withstands it is no proof that it withstands others.
    """
    mean, side = seen.mean, _side(seen)
    square = float(mean @ mean)
    tried: list[tuple[float, float, Matrix]] = []
    for push in (-mean, widest(seen.known, side, sums=False) * side):
        for factor in _FACTORS:
            made = seen.alike(mean + factor * strength * push)
            step = _step(seen, made)
            cost = 1.0 - float(step @ mean) / square if square > 0 else 0.0
            tried.append((cost, float(np.linalg.norm(step - mean)), made))
    backwards = max(tried, key=lambda one: one[0])
    return backwards[2] if backwards[0] >= 0.5 else max(tried, key=lambda one: one[1])[2]


def _step(seen: Seen, tried: Matrix) -> Vector:
    """What the rule makes of the honest updates and these, as far as the attackers can tell."""
    rows = np.concatenate([np.asarray(seen.honest, dtype=np.float64), tried])
    if seen.rule is None:
        return np.asarray(rows.mean(axis=0), dtype=np.float64)
    places = np.arange(len(rows), dtype=np.int64) if seen.places is None else seen.places
    registered = len(rows) if seen.registered is None else seen.registered
    order = np.argsort(places, kind="stable")
    sent = Sent(
        updates=rows[order], attackers=seen.attackers if seen.stated is None else seen.stated, places=places[order],
        registered=registered, rng=seen.rng, trial=seen.trial,
        memory=dict(seen.memory) or seen.rule.memory(registered, rows.shape[1]),
    )  # fmt: skip
    return seen.rule.combine(sent).step
