"""What a released model shows of its classes: an input that it takes for the best example of each.

Model inversion (Fredrikson, Jha, Ristenpart 2015) climbs from nothing to the input that a model finds most typical of a
class. What comes out resembles the class, as every useful model must know what its classes look like. It says nothing
about a record that the class would not be without: **differential privacy does not promise to stop it**, and at ε = 1
it still works where the model does.

So success is counted against records that did not train: an input is typical if it resembles the mean of its own class
among them more than any other class's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.audit.outcome import AttackOutcome
from quietsum.errors import InvalidParameter
from quietsum.validate import non_negative, positive, whole_number

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["attack_classes", "invert_class"]


def invert_class(
    model: nn.Module, label: int, shape: tuple[int, ...], *, steps: int = 100, rate: float = 0.1, shrink: float = 0.01
) -> Tensor:
    """The input of ``shape`` with the largest ln p(``label``) − ``shrink`` · ‖x‖² that climbing from zeros finds."""
    import torch

    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    found = torch.zeros(1, *shape, device=device, requires_grad=True)
    search = torch.optim.Adam([found], lr=positive("rate", rate))
    less, wanted = non_negative("shrink", shrink), torch.tensor([whole_number("label", label)], device=device)
    was_training = model.training
    model.eval()
    try:
        for _ in range(whole_number("steps", steps, 1)):
            cost = torch.nn.functional.cross_entropy(model(found), wanted) + less * found.square().sum()
            search.zero_grad()
            (found.grad,) = torch.autograd.grad(cost, [found])
            search.step()
    finally:
        model.train(was_training)
    return found.detach()[0]


def attack_classes(
    model: nn.Module, inputs: Tensor, labels: ArrayLike, *, on: str = "", steps: int = 100
) -> AttackOutcome:
    """Invert every class, and count whose result is most like its own class among ``inputs``, which did not train."""
    rows = inputs.detach().double().cpu().numpy().reshape(len(inputs), -1)
    named = np.asarray(labels)
    classes = np.unique(named)
    if named.shape != (len(rows),) or len(classes) < 2:
        problem = f"do not name two classes or more of {len(rows)} inputs"
        raise InvalidParameter("labels", f"of shape {named.shape}", problem, "pass one label for each input")
    means = np.stack([rows[named == one].mean(axis=0) for one in classes])
    means = _unit(means - means.mean(axis=0))
    found = [
        invert_class(model, int(one), tuple(inputs.shape[1:]), steps=steps).double().cpu().numpy().ravel()
        for one in classes
    ]
    typical = np.stack(found)
    nearest = (_unit(typical - typical.mean(axis=0)) @ means.T).argmax(axis=1)
    right = int((nearest == np.arange(len(classes))).sum())
    return AttackOutcome(
        attack="class inversion", on=on or f"{len(classes)} classes", successes=right, trials=len(classes),
        chance=1 / len(classes),
    )  # fmt: skip


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))
