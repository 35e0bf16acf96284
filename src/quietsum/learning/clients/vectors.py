"""A model's weights as one flat vector, and back.

A federation speaks in vectors: the server averages them, mechanisms bound them, checkpoints keep them. A torch model
speaks in named tensors. :class:`ModelLayout` is the fixed agreement between the two: the trainable parameters in
the order in which the model names them, a shared one once, each flattened by rows.

The vector is float64. A float32 weight fits into it exactly, so reading a model and writing it back changes no bit;
writing a vector that has more digits than the weights rounds it to theirs.

>>> model = nn.Linear(2, 1)
>>> layout = ModelLayout.of(model)
>>> layout.names, layout.dimension
(('weight', 'bias'), 3)
>>> layout.write(model, np.array([1.0, 2.0, 0.5]))
>>> layout.read(model).tolist()
[1.0, 2.0, 0.5]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.engines.protocol import trainable
from quietsum.learning.noise.gradient_noise import refuse_coarse

__all__ = ["ModelLayout"]

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """Which numbers of a vector are which weights: ``names`` and ``shapes``, in order.

    Guarantees: ``read`` after ``write`` gives the vector in the weights' own precision, to the bit. A vector of another
    length, or with a number that the weights cannot hold, and a model with other weights are refused, never cut or
    padded.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> ModelLayout:
        """That of the trainable parameters of ``model``; half precision is refused."""
        names, parameters = trainable(model)
        refuse_coarse(names, parameters)
        return cls(names=names, shapes=tuple(tuple(parameter.shape) for parameter in parameters))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each parameter has."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dimension(self) -> int:
        """How many numbers the vector has."""
        return sum(self.sizes)

    def read(self, model: nn.Module) -> Vector:
        """The weights of ``model`` as a vector of its own."""
        return self.join(self.parameters(model))

    def write(self, model: nn.Module, vector: Vector) -> None:
        """Make the weights of ``model`` those of ``vector``, in place; its buffers are left alone."""
        parameters = self.parameters(model)
        with torch.no_grad():
            parts = self.split(vector)
            rounded = [part.to(old.dtype) for part, old in zip(parts, parameters, strict=True)]
            if not all(bool(torch.isfinite(part).all()) for part in rounded):
                problem = "holds numbers that the weights cannot hold"
                raise InvalidParameter("params", "a vector", problem, "take smaller steps; the model is left as it was")
            for parameter, part in zip(parameters, rounded, strict=True):
                parameter.copy_(part)

    def split(self, vector: Vector) -> tuple[Tensor, ...]:
        """``vector`` as float64 tensors in the parameters' shapes."""
        values = np.asarray(vector)
        if values.dtype.kind not in "fiu" or values.shape != (self.dimension,):
            shown = f"{values.dtype} of shape {values.shape}"
            raise InvalidParameter(
                "params", shown, f"is no vector of {self.dimension} numbers", "pass what initial() or read() returned"
            )
        flat = torch.from_numpy(np.array(values, dtype=np.float64))
        return tuple(
            part.view(shape) for part, shape in zip(torch.split(flat, list(self.sizes)), self.shapes, strict=True)
        )

    def join(self, tensors: Sequence[Tensor]) -> Vector:
        """Tensors in the parameters' shapes as one vector."""
        if tuple(tuple(part.shape) for part in tensors) != self.shapes:
            shapes = [tuple(part.shape) for part in tensors]
            raise InvalidParameter("tensors", shapes, f"are not of shapes {list(self.shapes)}", "keep their order")
        flat = torch.cat([part.detach().to("cpu", torch.float64).flatten() for part in tensors])
        return np.array(flat.numpy(), dtype=np.float64)

    def parameters(self, model: nn.Module) -> tuple[nn.Parameter, ...]:
        """The trainable parameters of ``model``, where they are the ones of this layout."""
        names, found = trainable(model)
        if names != self.names or tuple(tuple(parameter.shape) for parameter in found) != self.shapes:
            problem = "has other trainable parameters than the vector was laid out for"
            raise InvalidParameter("model", type(model).__name__, problem, "freeze or unfreeze nothing in between")
        return found
