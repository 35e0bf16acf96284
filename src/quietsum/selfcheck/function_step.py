"""A step that is one function: features and labels in, the noisy sum of clipped gradients out.

Many trainers have no seams: noise is added where the gradients are summed. One parameter is enough of a seam. A
function that takes its noise multiplier shows its sum when that is 0, and its noise when there are no rows; with both
in separate hands most of the self-check's questions can be asked.

>>> import numpy as np
>>> def step(features, labels, *, noise_multiplier, max_grad_norm):  # clips the batch, not each row: a mistake
...     total = (features * labels[:, None]).sum(axis=0)
...     total *= min(1.0, max_grad_norm / max(float(np.linalg.norm(total)), 1e-300))
...     return total + noise_multiplier * max_grad_norm * np.random.standard_normal(features.shape[1])
>>> from quietsum.selfcheck import run_selfcheck
>>> checked = FunctionStep(step, noise_multiplier=1.1, max_norm=1.0, rate=0.05, population=1000)
>>> found = run_selfcheck(checked, only=("T1",))
>>> found.passed, found.failures[0].name
(False, 'sensitivity')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.privacy import Gaussian, PoissonSampled, PrivacyEvent
from quietsum.selfcheck.protocol import Batch, Floats, Law, TrainerOutput
from quietsum.validate import positive, positive_share, whole_number

__all__ = ["FunctionStep"]

Step = Callable[..., Any]
Draw = Callable[[int, float], Any]


@final
class FunctionStep:
    """``step(features, labels, noise_multiplier=σ, max_grad_norm=C)`` under test; it returns the sum as one vector.

    ``features`` numbers and a label from 0 to ``classes`` − 1 are a row. ``draw(population, rate)``, where there is
    one, gives the indices of a batch. Only the questions in :attr:`tests` can be asked: what is saved for a restart,
    what the accountant hears and which constants steer the run are not to be seen in one function.
    """

    law = Law.GAUSSIAN
    allowance = 0.0
    twin = None

    def __init__(
        self,
        step: Step,
        *,
        noise_multiplier: float,
        max_norm: float,
        rate: float,
        population: int,
        features: int = 10,
        classes: int = 2,
        draw: Draw | None = None,
        name: str = "",
    ) -> None:
        self._step, self._draw = step, draw
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self.sensitivity = positive("max_grad_norm", max_norm)
        self.rate = positive_share("sample_rate", rate)
        self.population = whole_number("population", population, 1)
        self._features = whole_number("features", features, 1)
        self._classes = whole_number("classes", classes, 1)
        self.name = name or getattr(step, "__name__", "step")
        self._charged = 0
        first = self._call(self.examples(2, system_randomness()), 0.0)
        self.precision = float(np.finfo(self._kind).eps)
        self._length = first.size

    @property
    def tests(self) -> tuple[str, ...]:
        """Which of the eleven tests have an answer here."""
        return ("T1", "T2", "T3", *(("T4",) if self._draw else ()), "T5", "T6", "T11")

    def _call(self, batch: Batch, noise: float) -> Floats:
        with np.errstate(all="ignore"):
            found = np.asarray(self._step(*batch, noise_multiplier=noise, max_grad_norm=self.sensitivity))
        if found.ndim != 1 or found.dtype.kind != "f" or not found.size:
            raise InvalidParameter(
                "trainer",
                f"{found.dtype} of shape {found.shape}",
                "is no vector of floats",
                "return the noisy sum of all clipped gradients as one vector",
            )
        self._kind = found.dtype
        return found.astype(np.float64)

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Made-up rows: standard normal numbers, uniform labels."""
        features = np.asarray(rng.normals((count, self._features)), dtype=np.float64).reshape(count, self._features)
        return features, np.floor(rng.uniforms(count) * self._classes).astype(np.int64)

    def deterministic(self, batch: Batch) -> Floats:
        """The step with a noise multiplier of 0."""
        return self._call(batch, 0.0)

    def noise(self) -> Floats:
        """The step on no rows."""
        return self._call(self.examples(0, system_randomness()), self.noise_multiplier)

    def beside(self, draws: int) -> Floats:
        """Nothing is released beside the sum."""
        return np.empty(0)

    def release(self, batch: Batch) -> Floats:
        """The step as it is."""
        return self._call(batch, self.noise_multiplier)

    def sample(self, population: int) -> NDArray[np.int64]:
        """One draw of the trainer's own; coins of ours where it shows none, which no test then looks at."""
        if self._draw is not None:
            return np.asarray(self._draw(population, self.rate), dtype=np.int64)
        return np.flatnonzero(system_randomness().coins(self.rate, population)).astype(np.int64)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """One release for each batch."""
        self._charged += len(batches)
        return TrainerOutput(releases=tuple(self.release(batch) for batch in batches), charged=self._charged)

    def restart(self) -> FunctionStep:
        """A function keeps nothing."""
        return self

    def public_constants(self, population: int) -> Mapping[str, float]:
        """What was stated."""
        return {"rate": self.rate, "noise multiplier": self.noise_multiplier, "sensitivity": self.sensitivity}

    def event(self) -> PrivacyEvent:
        """What was stated."""
        return PoissonSampled(rate=self.rate, event=Gaussian(noise_multiplier=self.noise_multiplier))

    def reference(self, batch: Batch) -> Floats | None:
        """There is none."""
        return None
