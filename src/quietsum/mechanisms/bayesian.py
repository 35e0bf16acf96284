"""Bayesian diagnostics: how much a release tells about a *typical* unit, under a stated prior. No guarantee.

Differential privacy speaks of the worst unit. Bayesian differential privacy (Triastcyn, Faltings 2019, arXiv
1901.09697) draws the unit x from a distribution μ and asks for the ε that the privacy loss L exceeds with probability δ
at most, over the mechanism's coins *and* over x. The numbers are smaller, and they promise nothing to a unit that is
unlike the others, which needs it most. So they are diagnostics here: every rendering says "not a worst-case guarantee",
accountants and the ledger refuse them by name, and one that was computed from private rows is no private release.

For Gaussian noise of standard deviation σ·C on a sum to which x contributes a vector of norm r·C, the loss of T steps
is normal given x: L ~ N(R²/2, R²) with R = r √T / σ. Under μ:

* P(L ≥ ε) = E_x Φ̄((ε − R²/2)/R) is the *distribution of the loss*; ``epsilon`` is where it falls to δ;
* E e^{λL} = E_x e^{λ(λ+1)R²/2}, and by Markov's inequality ε ≤ (log E e^{λL} + log 1/δ)/λ: ``epsilon_by_moments``.
  For a sample, the mean is replaced by the upper end of its posterior under a flat prior, Student's t, as in the paper
  (after Oliphant 2006);
* ε(x) at δ, the usual ε of one unit's pair, is a number for each x: ``epsilon_interval`` holds a share ``level``.

All T steps concern the same x, so the mean over x is taken once, of all steps together.

>>> prior = GaussianPrior(scale=0.1, dimension=1)
>>> print(bayesian_loss(noise_multiplier=1.0, steps=10, delta=1e-5, prior=prior))  # doctest: +NORMALIZE_WHITESPACE
not a worst-case guarantee: under the prior "contributions N(0, 0.1² I) in 1 dimension(s), in units of C" the loss
exceeds ε = 3.511 with probability 1e-05 (by moments 4.974); 95 % of units have ε between 0.02695 and 2.951; at
the clip norm, which is charged, ε = 17.86
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, log_ndtr, logsumexp, ndtr, stdtrit, xlogy

from quietsum.errors import InvalidParameter
from quietsum.privacy import Diagnostic, gaussian_epsilon
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["BayesianDiagnostic", "GaussianPrior", "ObservedNorms", "Prior", "PrivacyLoss", "bayesian_loss"]

Array = npt.NDArray[np.float64]

LABEL = "not a worst-case guarantee"
"""What every rendering of a diagnostic begins with."""

_NODES = 4001
_ORDERS = tuple(np.concatenate([np.arange(1, 20) / 20, np.geomspace(1.0, 512.0, 181)]).tolist())


class Prior(Protocol):
    """A distribution of the norm r of one unit's contribution, in units of C."""

    @property
    def words(self) -> str:
        """The prior as a sentence, for readers of the number."""

    @property
    def private(self) -> bool:
        """Whether the prior was taken from rows that need protection."""

    def squares(self) -> tuple[Array, Array]:
        """Values of r² and their weights, which sum to one."""

    def log_moment(self, factor: float, level: float) -> float:
        """log E e^{factor·r²}, or its upper credible bound at ``level``; infinite where there is none."""

    def square_quantile(self, share: float) -> float:
        """The r² that a share of units stays below."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianPrior:
    """Contributions N(0, scale² I) in ``dimension`` dimensions, in units of C and before any clip: r² = scale² χ²."""

    scale: float
    dimension: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive("scale", self.scale))
        object.__setattr__(self, "dimension", whole_number("dimension", self.dimension, 1))

    @property
    def words(self) -> str:
        """The prior as a sentence."""
        return f"contributions N(0, {self.scale:g}² I) in {self.dimension} dimension(s), in units of C"

    @property
    def private(self) -> bool:
        """No: it was stated, not taken from rows."""
        return False

    def squares(self) -> tuple[Array, Array]:
        """Nodes of Simpson's rule for χ, which has a smooth density, out to where nothing is left."""
        centre = math.sqrt(self.dimension)
        nodes = np.linspace(max(0.0, centre - 14.0), centre + 14.0, _NODES)
        weights = np.ones(_NODES)
        weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
        with np.errstate(divide="ignore"):
            density = xlogy(self.dimension - 1, nodes) - 0.5 * nodes**2  # of χ, up to a constant
        weights *= np.exp(density - density.max())
        return (self.scale * nodes) ** 2, weights / weights.sum()

    def log_moment(self, factor: float, level: float) -> float:
        """−d/2 log(1 − 2·factor·scale²), the moment of χ²; exact, so that ``level`` plays no part."""
        rest = 1 - 2 * factor * self.scale**2
        return -0.5 * self.dimension * math.log(rest) if rest > 0 else math.inf

    def square_quantile(self, share: float) -> float:
        """scale² times the quantile of χ²."""
        return 2 * self.scale**2 * float(gammaincinv(0.5 * self.dimension, share))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ObservedNorms:
    """Norms of clipped contributions that were measured, in units of C: the next unit is drawn from where these were.

    A flat prior on the mean and the variance of each moment; the tail beyond the largest norm seen is invisible.
    """

    norms: Sequence[float] | Array

    def __post_init__(self) -> None:
        values = np.asarray(self.norms, dtype=np.float64)
        if values.ndim != 1 or values.size < 2:
            raise InvalidParameter("norms", values.shape, "is no list of at least two norms", "pass one norm a unit")
        if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1 + 1e-9:
            worst = float(values[np.argmax(~np.isfinite(values) | (values < 0) | (values > 1 + 1e-9))])
            raise InvalidParameter("norms", worst, "is not in [0, 1]", "divide by C after clipping to C")
        object.__setattr__(self, "norms", values)

    @property
    def words(self) -> str:
        """The prior as a sentence."""
        return f"the next unit is drawn like the {len(self.norms)} observed ones, flat prior on moments"

    @property
    def private(self) -> bool:
        """Yes: the norms are facts about the rows."""
        return True

    def squares(self) -> tuple[Array, Array]:
        """The squares of the norms, each as likely as the other."""
        squares = np.asarray(self.norms, dtype=np.float64) ** 2
        return squares, np.full(squares.size, 1 / squares.size)

    def log_moment(self, factor: float, level: float) -> float:
        """The log of the ``level`` quantile of Student's posterior of the mean of e^{factor·r²}."""
        exponents = factor * self.squares()[0]
        top = float(exponents.max())
        values = np.exp(exponents - top)
        reach = float(stdtrit(values.size - 1, level)) / math.sqrt(values.size - 1)
        return top + math.log(float(values.mean()) + reach * float(values.std()))

    def square_quantile(self, share: float) -> float:
        """The empirical quantile."""
        return float(np.quantile(self.squares()[0], share))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrivacyLoss:
    """The distribution of the privacy loss over coins and units: a mixture of N(R²/2, R²)."""

    squares: Array
    weights: Array

    def exceeds(self, epsilon: float) -> float:
        """P(L ≥ ε)."""
        centred = epsilon - 0.5 * self.squares
        spread = np.sqrt(self.squares)
        with np.errstate(divide="ignore", invalid="ignore"):
            chances = np.where(spread > 0, ndtr(-centred / spread), np.where(centred <= 0, 1.0, 0.0))
        return float(np.sum(self.weights * chances))

    def log_exceeds(self, epsilon: float) -> float:
        """log P(L ≥ ε), where the probability itself would be 0."""
        used = (self.squares > 0) & (self.weights > 0)
        if epsilon <= 0 or not used.any():
            chance = self.exceeds(epsilon)
            return math.log(chance) if chance > 0 else -math.inf
        squares = self.squares[used]
        return float(logsumexp(log_ndtr(-(epsilon - 0.5 * squares) / np.sqrt(squares)), b=self.weights[used]))

    @property
    def mean(self) -> float:
        """E L, the mean over units of the Kullback-Leibler divergence."""
        return float(np.sum(self.weights * 0.5 * self.squares))

    def quantile(self, share: float) -> float:
        """The loss that is exceeded with probability 1 − share."""
        return self.falls_to(1 - open_probability("share", share))

    def falls_to(self, delta: float) -> float:
        """The loss that is exceeded with probability ``delta``."""
        target, most = math.log(open_probability("delta", delta)), float(self.squares.max())
        high = 0.5 * most + 60 * math.sqrt(most) + 1.0
        low = -high
        for _ in range(100):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.log_exceeds(middle) <= target else (middle, high)
        return high


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BayesianDiagnostic(Diagnostic):
    """What a typical unit loses, under a prior. Not a worst-case guarantee, and nothing that can be charged.

    ``epsilon``: the loss that is exceeded with probability δ over coins and units. ``epsilon_by_moments``: the estimate
    of the paper, larger, at credible ``level``. ``epsilon_interval``: holds ε(x) at δ of a share ``level`` of units x.
    ``mean_loss_interval``: the credible interval of the mean loss, where the prior is a sample. ``epsilon_at_clip``:
    the ε of a unit with norm C, which is what is charged and the worst case of clipped contributions.
    """

    noise_multiplier: float
    steps: int
    prior: str
    private: bool
    delta: float
    level: float
    epsilon: float
    epsilon_by_moments: float
    epsilon_interval: tuple[float, float]
    epsilon_at_clip: float
    mean_loss_interval: tuple[float, float] | None
    loss: PrivacyLoss

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values; the first key says what this is not."""
        fields = [field.name for field in dataclasses.fields(self) if field.name != "loss"]
        values: dict[str, Any] = {"label": LABEL, "kind": "bayesian diagnostic"}
        for name in fields:
            value = getattr(self, name)
            values[name] = "Infinity" if value == math.inf else value
        return values

    def __str__(self) -> str:
        low, high = self.epsilon_interval
        text = (
            f'{LABEL}: under the prior "{self.prior}" the loss exceeds ε = {self.epsilon:.4g} with probability '
            f"{self.delta:g} (by moments {self.epsilon_by_moments:.4g}); {self.level * 100:g} % of units have ε "
            f"between {low:.4g} and {high:.4g}; at the clip norm, which is charged, ε = {self.epsilon_at_clip:.4g}"
        )
        return f"{text}\n{_PRIVATE}" if self.private else text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(line)}</p>" for line in str(self).split("\n"))


_PRIVATE = "computed from the rows themselves: showing this number is a release that no guarantee covers"


def bayesian_loss(
    *, noise_multiplier: float, prior: Prior, delta: float, steps: int = 1, level: float = 0.95
) -> BayesianDiagnostic:
    """The privacy loss of ``steps`` sums with Gaussian noise, for units drawn from ``prior``. Not a guarantee.

    ``prior`` is a :class:`GaussianPrior`, or :class:`ObservedNorms` of clipped contributions, measured by somebody who
    may see them.
    """
    sigma, delta = positive("noise_multiplier", noise_multiplier), open_probability("delta", delta)
    steps, level = whole_number("steps", steps, 1), open_probability("level", level)
    if not isinstance(prior, GaussianPrior | ObservedNorms):
        raise InvalidParameter("prior", prior, "is no prior", "state a GaussianPrior or ObservedNorms")
    growth = steps / sigma**2  # R² = growth · r²
    squares, weights = prior.squares()
    loss = PrivacyLoss(squares=growth * squares, weights=weights)
    moments = min(
        (prior.log_moment(0.5 * order * (order + 1) * growth, level) - math.log(delta)) / order for order in _ORDERS
    )
    tail = 0.5 * (1 - level)
    interval = tuple(_epsilon(growth * prior.square_quantile(share), delta) for share in (tail, 1 - tail))
    return BayesianDiagnostic(
        noise_multiplier=sigma,
        steps=steps,
        prior=prior.words,
        private=prior.private,
        delta=delta,
        level=level,
        epsilon=max(0.0, loss.falls_to(delta)),
        epsilon_by_moments=max(0.0, moments),
        epsilon_interval=(interval[0], interval[1]),
        epsilon_at_clip=gaussian_epsilon(math.sqrt(growth), delta),
        mean_loss_interval=_mean_interval(loss, level) if prior.private else None,
        loss=loss,
    )


def _epsilon(square: float, delta: float) -> float:
    return gaussian_epsilon(math.sqrt(square), delta) if square > 0 else 0.0


def _mean_interval(loss: PrivacyLoss, level: float) -> tuple[float, float]:
    """Student's posterior of the mean loss, under a flat prior."""
    values = 0.5 * loss.squares
    reach = float(stdtrit(values.size - 1, 0.5 + 0.5 * level)) * float(values.std()) / math.sqrt(values.size - 1)
    return max(0.0, float(values.mean()) - reach), float(values.mean()) + reach
