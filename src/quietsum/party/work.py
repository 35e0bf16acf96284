"""What a party does in a round: look at the request, touch the data, add the noise, send.

Everything private ends here. What leaves a :class:`Site` is the change of the model with this party's noise in it; the
rows, the batch that was drawn and its size stay behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, QuietsumError
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
    sampling that states the charge. A request that was answered before is refused, never answered with fresh noise on
    the same charge (rule 10). Randomness comes from the operating system and is never restored.
    """

    def __init__(
        self, name: str, *, task: NumpyTask, resolved: ResolvedPlan, rng: RandomSource, refuses: str = ""
    ) -> None:
        self.name = name
        self._task, self._resolved, self._rng, self._refuses = task, resolved, rng, refuses
        self._answered: tuple[str, int, int, str] | None = None

    def answer(self, key: tuple[str, int, int, str], params: Vector) -> Vector:
        """The change of the model; :class:`NotTouched` where the party refuses before it looks at its data."""
        if self._refuses:
            raise NotTouched(self._refuses)
        if key == self._answered:
            raise AnsweredBefore(f"round {key[1]}, attempt {key[2]} was answered before")
        resolved, training = self._resolved, self._resolved.plan.training
        sampling = resolved.sampling_of(self.name)
        reach("party:before-data")
        try:
            rows = self._task.rows(self.name)
        except QuietsumError as error:
            raise NotTouched(f"its data could not be read ({_without_values(error)})") from None
        self._answered = key
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


def _without_values(error: QuietsumError) -> str:
    """What went wrong, without any value: a message about data may quote a row, and a refusal leaves the site."""
    if isinstance(error, InvalidParameter):
        return f"{type(error).__name__}: {error.parameter}"
    return type(error).__name__
