"""What private training does where nothing is stated: batch, epochs, clip, optimizer, learning rate, class balance.

Each is a function of public numbers alone: how many records are declared (n), how many classes the model has, σ and
the length of the plan. There is no table of data sets. With T steps, batch E and C the clip:

    steps           T = 200
    passes          P = 200 up to 2,500 records, then 500,000 / n, and 20 at least; E = n P / T
                    (fewer than 200 records: T = P = n, and 20 at least)
    clip            flat, C = 1, where labels are classes; automatic (Bu et al. 2023) elsewhere
    optimizer       Adam (Kingma, Ba 2015), β = 0.9 and 0.999
    learning rate   0.8 / √T at first, then a straight line to 0; for tokens that of 150 steps at most
    class balance   a record of class y counts r / s_y, with s the noisy shares of the classes and r the rarest
    input scale     the learning rate times 0.4 … 3, by the noisy length of the inputs

**Steps.** At one ε, σ grows like √T as long as σ > 1 (privacy amplification by sampling), so the noise of the whole
run, σ √d / (E √T), hardly depends on T. More steps cost time alone, and more passes hardly help once σ > 2.

**Clip.** The gradient of the cross entropy in the last bias is p − y, whose length is 0.7 or more before anything is
learnt. So C = 1 bounds no more than is there at the start, at any scale of the features. Automatic clipping gives
every record the same weight for ever; where one class is rare its records are outvoted, and the score falls below
chance. Other losses have no such scale, so their gradients are brought to one length.

**Learning rate.** Where noise exceeds signal, Adam's root is the noise's deviation: a step moves each weight by
lr · N(0, 1), and T steps on a line to 0 are a random walk of 0.8/√3 = 0.46 at any σ, C and d.
Where signal exceeds noise a weight moves by lr at most. Both are near what weights of usual layers need.
Where inputs are tokens, single steps of a short plan would be longer than weights are (0.25 with ten steps), and a
transformer ends near chance; so a step is never longer than with 150. Networks that read numbers do better with the
longer steps (``benchmarks/few_steps.py``). No length that is chosen here has so few steps from 200 records on.

**Class balance.** The first twentieth of the steps release how many records of each class the batch holds in place of
a gradient: one number 1 a record, so the same sensitivity, the same noise and the same event. Shares that stand out
of the noise then weigh records *after* the clip, which only lessens what a record can do; nothing is drawn or charged
beside the plan. Where no class has less than half of an even share all records count alike. Because balanced training
shifts the scores, the log of the weights is taken off the last bias when the model is shown
(Menon et al. 2021, "Long-tail learning via logit adjustment"): for AUC nothing changes, and probabilities fit again.

**Input scale.** One in five of those steps counts the lengths of the inputs instead, and short ones let the weights
move further (:mod:`quietsum.learning.rows.input_scale`).

Measured over nineteen models of ten data sets at ε 1, 3 and 8 in decision record 46; ``benchmarks/defaults.py``
repeats it with what others' tutorials choose.

>>> choose_length(60_000, None, None), choose_length(300, None, None), choose_length(10_000, None, 5)
((6000, 20), (300, 200), (250, 5))
>>> rate = Descending(peak=choose_rate(200), steps=200)
>>> round(rate(0), 4), round(rate(100), 4), rate(200)
(0.0566, 0.0283, 0.0)
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from quietsum.errors import CorruptState
from quietsum.learning.rows.input_scale import PACES, PLACES, choose_pace, count_lengths, count_seen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quietsum.learning.config import PrivacyConfig
    from quietsum.learning.engines.protocol import Batch
    from quietsum.learning.rows.records import Records

__all__ = [
    "Balance",
    "Descending",
    "choose_length",
    "choose_rate",
    "count_classes",
    "count_survey_steps",
    "make_balance",
    "settle_config",
]

STEPS = 200
_ROWS = 500_000  # records read in a run, where the data does not ask for more
_FEWEST_PASSES = 20
_WALK = 0.8  # the first learning rate is this over √T
_SHORT = 150  # steps, below which the rate for tokens does not rise
_SURVEYED = 20  # one step in so many asks for classes
_SCALED = 5  # and one in so many of those for the inputs' lengths, if there are so many
_SEEN = 3.0  # a class counts where it exceeds its noise so many times


def choose_length(size: int, batch_size: int | None, epochs: int | None) -> tuple[int, int]:
    """Batch and epochs for ``size`` records; what is stated stays, the other is chosen for about 200 steps."""
    if batch_size is None and epochs is None:
        passes = min(STEPS, max(_FEWEST_PASSES, min(size, round(_ROWS / size))))
        return max(1, min(size, round(size * passes / min(STEPS, max(size, _FEWEST_PASSES))))), passes
    if batch_size is None:
        assert epochs is not None
        return max(1, min(size, round(size * epochs / STEPS))), epochs
    return batch_size, max(1, round(STEPS * batch_size / size)) if epochs is None else epochs


def settle_config(config: PrivacyConfig, size: int, *, labelled: bool = True) -> PrivacyConfig:
    """``config`` with every number that it leaves open, for ``size`` records; ``labelled``: they have classes."""
    public = config.public_size or max(1, size)
    batch, epochs = choose_length(public, config.batch_size, config.epochs)
    clipping = config.clipping
    if not clipping:
        free = not labelled and config.max_grad_norm is None and config.noise_type == "gaussian"
        clipping = "automatic" if free else "flat"
    norm = 1.0 if config.max_grad_norm is None else config.max_grad_norm
    return dataclasses.replace(config, batch_size=batch, epochs=epochs, clipping=clipping, max_grad_norm=norm)


def choose_rate(steps: int, *, tokens: bool = False) -> float:
    """Adam's first learning rate for a plan of so many steps; ``tokens``: inputs are whole numbers."""
    return _WALK / math.sqrt(max(steps, _SHORT) if tokens else steps)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Descending:
    """A learning rate on a straight line from ``peak`` to 0 behind the last step."""

    peak: float
    steps: int

    def __call__(self, step: int) -> float:
        """The rate of step 0 … steps − 1."""
        return self.peak * (1 - step / self.steps)


# ---------------------------------------------------------------------------------------------- class balance


def count_survey_steps(steps: int) -> int:
    """How many of a plan's steps ask how many records each class has; 0 in a short plan, which has none to spare."""
    return steps // _SURVEYED


def count_classes(model: nn.Module, records: Records, device: torch.device) -> int | None:
    """How many classes the model tells apart, from made-up rows; None where records are not (inputs, class)."""
    if not has_classes(records):
        return None
    with torch.no_grad():
        scores = model(records.make_up(device)[0])
    if not isinstance(scores, Tensor) or scores.dim() not in (1, 2):
        return None
    return 2 if scores.dim() == 1 or scores.shape[1] == 1 else int(scores.shape[1])


def has_classes(records: Records) -> bool:
    """Whether a record is (inputs, one whole number)."""
    if len(records.schema) != 2:
        return False
    shape, dtype = records.schema[1]
    return not shape and not dtype.is_floating_point and dtype != torch.bool


@final
class Balance:
    """Noisy counts of classes and lengths, and what follows: weights of records, a shift of the scores, a pace.

    Guarantees: everything but :meth:`one_hot` is a function of released counts and public numbers. ``seen`` is how
    many numbers a unit of the first layer takes; 0 asks for no lengths. ``marks`` is the place of a batch's part that
    is above 0 for rows that are no records: canaries of an audit. They are not counted, and weigh 1.
    """

    marks: int | None = None

    def __init__(self, classes: int, seen: int = 0) -> None:
        self.classes, self._seen, self._taken = classes, seen, 0
        self.pace = 1.0
        # behind the classes: labels that are none of them, then lengths
        self.counts = torch.zeros(classes + 1 + (PLACES if seen else 0), dtype=torch.float64)
        self._weights: Tensor | None = None

    @property
    def _asked(self) -> slice:
        """What the next count is about."""
        lengths = self._seen > 0 and self._taken % _SCALED == _SCALED - 1
        return slice(self.classes + 1, None) if lengths else slice(0, self.classes + 1)

    def one_hot(self, batch: Batch) -> Tensor:
        """How many records of each class, or of each length, the batch holds. Private: one record adds 1 to one."""
        inputs, labels = batch[0], batch[1].to(torch.int64)
        if self.marks is not None and len(batch) > self.marks:
            own = batch[self.marks] == 0
            inputs, labels = inputs[own], labels[own]
        found = torch.zeros_like(self.counts)
        asked = self._asked
        if asked.start:
            found[asked] = count_lengths(inputs, self._seen).to(found)
        else:
            known = torch.where((labels >= 0) & (labels < self.classes), labels, self.classes)
            found[asked] = torch.bincount(known, minlength=self.classes + 1).to(found)
        return found

    def take(self, released: Tensor) -> None:
        """One noisy count, of which the part that was asked for is kept."""
        asked = self._asked
        self.counts[asked] += released.to(self.counts)[asked]
        self._taken += 1

    def finish(self, *, steps: int, noise: float) -> None:
        """Fix weights and pace after so many counts, each with noise of deviation ``noise``."""
        lengths = steps // _SCALED if self._seen else 0
        classes = self.counts[: self.classes + 1]
        self._weights = weigh_classes(classes, _SEEN * noise * math.sqrt(steps - lengths))
        if lengths:
            self.pace = choose_pace(self.counts[self.classes + 1 :], _SEEN * noise * math.sqrt(lengths))

    @property
    def weights(self) -> Tensor | None:
        """What a record of each class counts, 1 at most; None where all count alike, or before :meth:`finish`."""
        return None if self._weights is None or bool((self._weights == 1).all()) else self._weights

    def parts(self, batch: Batch) -> list[tuple[float, Batch]]:
        """The batch by weight; records with a label that is no class count fully."""
        weights = self.weights
        if weights is None:
            return [(1.0, batch)]
        labels = batch[1].to(torch.int64)
        known = (labels >= 0) & (labels < self.classes)
        if self.marks is not None and len(batch) > self.marks:
            known &= batch[self.marks] == 0
        of_rows = torch.where(known, weights.to(labels.device)[labels.clamp(0, self.classes - 1)], 1.0)
        found = []
        for weight in sorted(set(weights.tolist()) | {1.0}):
            chosen = of_rows == weight
            found.append((weight, tuple(part[chosen] for part in batch)))
        return found

    def shift(self) -> Tensor:
        """What to add to the scores of a balanced model: −ln w of each class, around 0."""
        assert self._weights is not None
        found = -self._weights.log()
        return found - found.mean()

    def state(self) -> dict[str, Tensor]:
        """Counts and weights as tensors."""
        kept = torch.ones(self.classes, dtype=torch.float64) if self._weights is None else self._weights
        about = torch.tensor([self._seen, self._taken], dtype=torch.int64)
        pace, done = torch.tensor(self.pace, dtype=torch.float64), torch.tensor(self._weights is not None)
        return {"counts": self.counts, "weights": kept, "done": done, "asked": about, "pace": pace}

    @classmethod
    def of_state(cls, saved: Mapping[str, Tensor]) -> Balance:
        """What :meth:`state` returned. Raises CorruptState if it is none: a weight above 1 would outweigh the noise.

        A run that began before lengths were asked for goes on without them.
        """
        try:
            counts, weights, done = saved["counts"].double(), saved["weights"].double(), bool(saved["done"])
            seen, taken = saved["asked"].tolist() if "asked" in saved else (0, 0)
            pace = float(saved["pace"]) if "pace" in saved else 1.0
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CorruptState(
                f"the checkpoint holds no counts of classes ({error}); restore it from a backup"
            ) from None
        behind = 1 + (PLACES if seen else 0)
        fits = counts.dim() == 1 and len(counts) > 1 + behind and weights.shape == (len(counts) - behind,)
        fits = fits and min(seen, taken) >= 0 and PACES[0] <= pace <= PACES[1]
        if not fits or not bool(torch.isfinite(counts).all()) or not bool(((weights > 0) & (weights <= 1)).all()):
            raise CorruptState("the checkpoint weighs classes by what is no share; restore it from a backup")
        made = cls(len(weights), seen)
        made.counts, made._weights = counts.clone(), weights.clone() if done else None
        made._taken, made.pace = taken, pace
        return made


def weigh_classes(counts: Tensor, seen: float) -> Tensor:
    """Weights of classes from noisy counts, the last of which are other labels; below ``seen`` a count is noise.

    Of two classes the rarer counts 1 and the other one is brought down to it. Of more, no class is brought below a
    quarter of an even share, so that one rare class does not silence the others. Weights are rounded to powers of √2,
    which keeps their number, and with it the work of a step, small.

    >>> weigh_classes(torch.tensor([990.0, 10.0, 0.0]), 3.0)
    tensor([0.0110, 1.0000], dtype=torch.float64)
    >>> weigh_classes(torch.tensor([700.0, 300.0, 0.0]), 3.0), weigh_classes(torch.tensor([990.0, 10.0, 0.0]), 30.0)
    (tensor([1., 1.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """
    classes = len(counts) - 1
    own, weights = counts[:-1].to(torch.float64), torch.ones(classes, dtype=torch.float64)
    there = own > seen
    total = float(own.clamp(min=0).sum())
    if int(there.sum()) < 2 or float(counts[-1]) > max(seen, 0.01 * total):
        return weights
    rarest = float(own[there].min())
    if rarest >= total / (2 * classes):
        return weights
    level = rarest if classes == 2 else max(rarest, total / (4 * classes))
    exact = (level / own[there]).clamp(max=1.0)
    weights[there] = 2 ** ((2 * torch.log2(exact)).round() / 2)
    return weights


def make_balance(model: nn.Module, records: Records, device: torch.device) -> Balance | None:
    """An empty survey of the classes; None where there are none to tell apart."""
    classes = count_classes(model, records, device)
    return None if classes is None or classes < 2 else Balance(classes, count_seen(model, records))


@torch.no_grad()
def find_score_bias(model: nn.Module, rows: Batch, classes: int) -> nn.Parameter | None:
    """The parameter that is added to the scores, found by moving each that could be on made-up rows; None without."""
    before = model(rows[0])
    width = before.shape[-1] if before.dim() == 2 else 1
    if width not in (1, classes):
        return None
    for _, parameter in reversed(list(model.named_parameters())):
        if tuple(parameter.shape) != (width,) or not parameter.requires_grad:
            continue
        kept, moved = parameter.detach().clone(), torch.linspace(-1.0, 2.0, width).to(parameter)
        try:
            parameter.add_(moved)
            after = model(rows[0])
        finally:
            parameter.copy_(kept)
        wanted = before + (moved if before.dim() == 2 else moved[0])
        if torch.allclose(after, wanted, rtol=1e-4, atol=1e-4):
            return parameter
    return None


def fit_shift(bias: nn.Parameter, shift: Tensor) -> Tensor:
    """``shift`` of two or more scores as a change of ``bias``, which may hold the one score of two classes."""
    return shift.to(bias) if len(bias) == len(shift) else (shift[1:] - shift[:1]).to(bias)
