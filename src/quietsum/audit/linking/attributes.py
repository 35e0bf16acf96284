"""A missing value of a record, filled in by trying which the model likes best.

The attacker knows all of a record but one value, and its label (Fredrikson et al. 2014; Yeom, Giacomelli, Fredrikson,
Jha 2018). Two values are tried, usual ones of the lower and of the upper half; the one with the smaller loss is taken.

Where the value goes with the label in the whole population, the guess is good for people whose record no model ever
saw: that is what a model is for, and **differential privacy does not promise to stop it**. What it bounds is how much
better the guess is for those who trained. So the attack is made on both, and their difference is what counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quietsum.audit.membership.scores import measure_losses
from quietsum.audit.outcome import AttackOutcome
from quietsum.errors import InvalidParameter
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["attack_attribute"]


def attack_attribute(
    model: nn.Module, loss: Any, records: tuple[Tensor, ...], column: int, *, public: Tensor, on: str = ""
) -> AttackOutcome:
    """Guess for each of ``records`` whether value ``column`` of its input is in the upper half.

    ``public`` are inputs of the same kind that need no protection: their median divides the halves, and the mean of
    each half is what is tried. Guessing reaches the larger of the two shares among ``records``.
    """
    inputs = records[0].flatten(1)
    place = whole_number("column", column)
    known = public.flatten(1)
    if place >= inputs.shape[1] or known.shape[1:] != inputs.shape[1:] or not len(known):
        problem = f"is no value of an input of {inputs.shape[1]} that public rows have, too"
        raise InvalidParameter("column", column, problem, "count from 0")
    values = known[:, place].double().cpu().numpy()
    middle = float(np.median(values))
    upper = inputs[:, place].double().cpu().numpy() > middle
    halves = (values[values <= middle], values[values > middle])
    share = max(float(upper.mean()), 1 - float(upper.mean()))
    if not len(halves[1]) or share == 1:
        problem = "has one value in nearly all rows, so there is nothing to guess"
        raise InvalidParameter("column", column, problem, "choose another")
    tried = []
    for half in halves:
        changed = inputs.clone()
        changed[:, place] = float(half.mean())
        tried.append(measure_losses(model, loss, (changed.reshape(records[0].shape), *records[1:])))
    guessed = tried[1] < tried[0]
    return AttackOutcome(
        attack="attribute inference", on=on or f"{len(upper)} records", successes=int((guessed == upper).sum()),
        trials=len(upper), chance=share,
    )  # fmt: skip
