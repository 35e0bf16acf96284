"""Are the books complete? A walk over torch's graph, from the losses down to the parameters.

A gradient that no note explains would not be clipped. So every operation that consumes a trainable parameter must
lie between an output that a slot has noted and the input of the same call. ``F.linear(x, self.layer.weight)`` does not:
the module that owns the weight never ran. The walk looks at the graph alone, never at values.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.autograd.graph import Node

from quietsum.learning.engines.shared.broadcast import Broadcast, NotCovered
from quietsum.learning.engines.tracing import Slot

__all__ = ["find_unaccounted"]


def find_unaccounted(losses: Tensor, slots: Sequence[Slot], parameters: Sequence[nn.Parameter]) -> list[int]:
    """Numbers of the parameters that the losses use in a way that no slot has noted.

    A use is noted when the operation that consumes the parameter lies between a noted output and the same call's input.
    """
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    consumers: dict[int, set[Node]] = {}
    seen: set[Node] = set()
    stack = [losses.grad_fn] if losses.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if type(variable) is Broadcast:  # its rows were passed by
                raise NotCovered(
                    f"{variable.label} is shared by all examples and used in a way that cannot be followed"
                )
            number = numbers.get(id(variable))
            if number is not None:
                consumers.setdefault(number, set()).add(node)
            else:
                stack.append(following)
    noted: dict[int, set[Node]] = {}
    for slot in slots:
        for call in slot.calls:
            reached = [edge.node for edge in call.edges if edge.node in seen]  # writing in place can leave one behind
            between = _between(reached, set(call.before))
            for number in slot.parameters:
                noted.setdefault(number, set()).update(between)
    return [number for number, nodes in consumers.items() if not nodes <= noted.get(number, set())]


def _between(outputs: Sequence[Node], inputs: set[Node]) -> set[Node]:
    seen: set[Node] = set()
    stack = [node for node in outputs if node not in inputs]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(
            following for following, _ in node.next_functions if following is not None and following not in inputs
        )
    return seen
