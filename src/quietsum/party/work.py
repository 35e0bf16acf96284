"""What a party does in a round: look at the request, touch the data, add the noise, send.

Everything private ends here. What leaves a :class:`Site` is the change of the model with this party's noise in it; the
rows, the batch that was drawn and its size stay behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter, QuietsumError
from quietsum.failpoints import reach
from quietsum.learning.descent import private_steps

if TYPE_CHECKING:
    from quietsum.mechanisms.rng import RandomSource
    from quietsum.plan import ResolvedPlan
    from quietsum.tasks.protocol import NumpyTask

__all__ = ["AnsweredBefore", "NotTouched", "Site"]

Vector = NDArray[np.float64]


class NotTouched(QuietsumError):
    """The party said no before it looked at its data, so nothing was spent."""


class AnsweredBefore(QuietsumError):
    """The same request came twice. The first answer was paid for; there is no second one, and no refund."""


@final
class Site:
    """One party of a federation.

    Guarantees: an answer is made of :func:`~quietsum.learning.descent.private_steps` with the plan's mechanism and the
    sampling that states the charge. Attempts of a run are answered in increasing order, each once, whatever model comes
    with them: never with fresh noise on the same charge (rule 10). Randomness comes from the operating system
    and is never restored.
    """

    def __init__(
        self, name: str, *, task: NumpyTask, resolved: ResolvedPlan, rng: RandomSource, refuses: str = ""
    ) -> None:
        self.name = name
        self._task, self._resolved, self._rng, self._refuses = task, resolved, rng, refuses
        self._answered: dict[str, tuple[int, int]] = {}
        if rng.for_tests and resolved.protected and not resolved.facts_of(name).public:
            raise InvalidParameter(
                "rng", "seeded", f"cannot protect the data of {name}", "use quietsum.mechanisms.rng.system_randomness()"
            )

    def answer(self, key: tuple[str, int, int, str], params: Vector) -> Vector:
        """The change of the model; :class:`NotTouched` where the party refuses before it looks at its data."""
        if self._refuses:
            raise NotTouched(self._refuses)
        run, number, attempt, _ = key
        if (number, attempt) <= self._answered.get(run, (0, 0)):
            raise AnsweredBefore(f"round {number}, attempt {attempt} or a later one was answered before")
        resolved, training = self._resolved, self._resolved.plan.training
        sampling = resolved.sampling_of(self.name)
        reach("party:before-data")
        try:
            self._answered[run] = number, attempt
            rows = self._task.rows(self.name)
        except DataMissing as error:
            raise NotTouched(f"it has no data: {error}") from None
        delta = private_steps(
            self._task,
            params,
            rows,
            steps=resolved.steps_of(self.name),
            sampling=sampling,
            mechanism=resolved.mechanism,
            expected_batch=resolved.expected_batch(self.name),
            learning_rate=training.optimizer.learning_rate,
            momentum=training.optimizer.momentum,
            rng=self._rng,
        )
        reach("party:before-send")
        return delta
