"""Many clients of one small model, trained side by side.

A client of a few records keeps a processor busy with everything except arithmetic: Python, autograd, a hundred tiny
matrix products. So the clients of a chunk train at once. Their parameters are stacked, (k, …), and torch.func's
``vmap(grad)`` turns k small products into one large one. Clients of unequal size are padded and the padding is masked;
a client that has done its steps stands still while others go on. Every client does what it would do alone:

    g = Σ_{i in batch} ∇ℓ_i(w) / expected_batch + proximal · (w − w_server)
    velocity ← momentum · velocity + g
    w ← w − learning_rate · velocity

(FedAvg: McMahan et al. 2017; the proximal term, FedProx: Li et al. 2020). Chunks are sized to a bound on memory, so
memory does not grow with the cohort. There is no per-example clip and no noise of records here: what leaves is bounded
and noised as a whole, at client level, or carries no guarantee.

Before the first client, two made-up clients are trained both ways. A model that torch cannot batch, or one whose
results differ because its rows mix, goes one client at a time, and the log says why.

>>> from quietsum.mechanisms.rng import system_randomness
>>> squared = lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1)
>>> side_by_side = SideBySide(nn.Linear(1, 1, bias=False), squared)
>>> shards = [np.array([0, 1]), np.array([2])]
>>> records = torch.ones(3, 1), torch.tensor([[1.0], [1.0], [3.0]])
>>> orders = [PlainOrders(steps=1, sampling=Everyone(), expected_batch=len(own), learning_rate=0.5) for own in shards]
>>> for clients, deltas in side_by_side.train(np.zeros(1), records, shards, orders, system_randomness()):
...     clients, deltas
(array([0, 1]), array([[1.],
       [3.]]))
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.clients.padded import Columns, Orders, PlainOrders, draw_padded, sound
from quietsum.learning.engines.batch_mixing import keep_unchanged, mixing_now
from quietsum.learning.engines.protocol import Batch, Loss, flat_rows, losses_of, rows_of, trainable
from quietsum.learning.engines.recurrent import unroll
from quietsum.learning.engines.vmap import _LossOf, _places
from quietsum.learning.rehearsal import training
from quietsum.learning.rows.memory import free_memory
from quietsum.sampling import Everyone
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["Orders", "PlainOrders", "SideBySide"]

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROOM = 1 << 27  # bytes that a chunk may take in main memory; on a card a quarter of what is free
_CACHED = 1 << 22  # bytes of parameters of a chunk in main memory: more leave the cache, and are no faster
_LEAST, _MOST = 8, 512  # clients of a chunk in main memory, whatever their size
_COPIES = 6  # of a client's parameters: values, gradient, velocity, a step, and the flat result in float64


@final
class SideBySide:
    """One model, and the room to train many copies of it at once.

    Guarantees: a client's result depends on the server's parameters, its orders and its own records alone, and equals
    what :meth:`alone` computes, up to the rounding of the model's own precision. The model's parameters and buffers are
    the same afterwards.
    """

    def __init__(self, model: nn.Module, loss: Loss, *, room: int | None = None) -> None:
        self._names, self._parameters = trainable(model)
        self._model, self._loss = model, loss
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._room = None if room is None else whole_number("room", room, 1)
        self._why_alone: str | None = None
        self._bytes_a_row: float = 0.0
        self._tried: tuple[Any, ...] | None = None
        places = _places(model, dict(zip(self._names, self._parameters, strict=True)))
        whole = _LossOf(model, loss)

        def mask_sum(values: dict[str, Tensor], mask: Tensor, *rows: Tensor) -> Tensor:
            swapped = {place: values[name] for place, name in places.items()}
            losses: Tensor = torch.func.functional_call(whole, swapped, rows, tie_weights=False)
            return torch.where(mask, losses, 0).sum()

        self._gradient = torch.func.grad(mask_sum)

    @property
    def dimension(self) -> int:
        """How many trainable parameters there are: the length of a vector here."""
        return sum(self._sizes)

    @property
    def device(self) -> torch.device:
        """Where the model lies; records are best there, too."""
        return self._parameters[0].device

    def why_alone(self, records: Batch, rng: RandomSource) -> str:
        """Why clients with such records are trained one at a time; empty where they are trained side by side."""
        schema = (self.device, *((part.shape[1:], part.dtype) for part in records))
        if self._tried != schema:
            self._why_alone, self._tried = self._trial(records, rng), schema
            if self._why_alone:
                log.info("clients are trained one at a time: %s", self._why_alone)
        return self._why_alone or ""

    def train(
        self, params: Floats, records: Batch, shards: Sequence[Indices], orders: Sequence[Orders], rng: RandomSource
    ) -> Iterator[tuple[Indices, Floats]]:
        """Chunk by chunk: which clients, by their place in ``shards``, and their new − old parameters, (k, dimension).

        ``shards[i]`` says which rows of ``records`` client i holds. Clients of similar size share a chunk.
        """
        start = self._split(params)
        total = rows_of(records)
        if len(shards) != len(orders):
            problem = f"are {len(orders)} for {len(shards)} clients"
            raise InvalidParameter("orders", "the orders", problem, "pass one for each client")
        for each in {id(each): each for each in orders}.values():
            sound(each)
        if not shards:
            return
        rows = np.concatenate(shards)
        if rows.size and (rows.min() < 0 or rows.max() >= total):
            raise InvalidParameter("shards", "a client's rows", f"lie outside the {total} records")
        if self.why_alone(records, rng):
            for place, own in enumerate(shards):
                yield np.array([place]), self.alone(params, records, own, orders[place], rng)[None]
            return
        order = np.argsort([own.size for own in shards], kind="stable")[::-1]
        first = 0
        while first < len(order):
            chunk = order[first : first + self._at_once(records, shards[order[first]].size)]
            first += len(chunk)
            told = [orders[place] for place in chunk]
            deltas = self._chunk(start, records, [shards[place] for place in chunk], told, rng)
            with np.errstate(over="ignore", invalid="ignore"):
                whole = np.isfinite(deltas.sum(axis=1))
            for row in np.flatnonzero(~whole):  # here a broken record counts as zero
                deltas[row] = self.alone(params, records, shards[chunk[row]], told[row], rng)
            yield chunk, deltas

    def alone(self, params: Floats, records: Batch, shard: Indices, orders: Orders, rng: RandomSource) -> Floats:
        """One client by ordinary autograd: the referee, and the way for models that cannot be batched.

        An example whose gradient is not finite counts as zero. Steps that overflow give a result that is not finite.
        """
        start = self._split(params)
        sound(orders)
        parts = [value.clone() for value in start]
        velocity = [torch.zeros_like(value) for value in parts]
        with self._swap(), training(self._model), keep_unchanged(self._model, weights=False):
            for _ in range(orders.steps):
                drawn = torch.from_numpy(shard[orders.sampling.draw(len(shard), rng)]).to(records[0].device)
                batch = tuple(part[drawn].to(self.device) for part in records)
                with torch.no_grad():
                    for parameter, value in zip(self._parameters, parts, strict=True):
                        parameter.copy_(value)
                found = self._sum_of(batch, len(drawn))
                for value, speed, gradient, origin in zip(parts, velocity, found, start, strict=True):
                    step = gradient / orders.expected_batch + orders.proximal * (value - origin)
                    speed.mul_(orders.momentum).add_(step)
                    value.sub_(orders.learning_rate * speed)
        delta: Floats = _flat([value[None] for value in parts], start)[0]
        return delta

    # ------------------------------------------------------------------------------------------------- a chunk

    def _chunk(
        self,
        start: Sequence[Tensor],
        records: Batch,
        shards: Sequence[Indices],
        orders: Sequence[Orders],
        rng: RandomSource,
    ) -> Floats:
        """All clients of one chunk, from the server's parameters to their deltas."""
        column = Columns(orders, self.device)
        values, velocity = [part[None] for part in start], list(start)
        held: tuple[Batch, Tensor, Tensor | None] | None = None
        everyone = all(isinstance(each.sampling, Everyone) for each in orders)
        with training(self._model), unroll(self._model, None), torch.no_grad():
            for step in range(column.most_steps):
                if held is None or not everyone:
                    held = draw_padded(records, shards, [each.sampling for each in orders], rng, self.device)
                batch, mask, nobody = held
                shared = len(values[0]) == 1 and len(shards) > 1  # the first step: everybody at the server's model
                found = self._gradients(values, mask, batch, shared=shared)
                for place, gradient in enumerate(found):
                    if nobody is not None:
                        gradient.masked_fill_(nobody.view(-1, *[1] * (gradient.dim() - 1)), 0)
                    if column.plain is not None:
                        values[place] = torch.add(values[place], gradient, alpha=-column.plain, out=gradient)
                        continue
                    gradient.div_(column.of("expected_batch", gradient))
                    if column.any_proximal and step:
                        gradient.add_(column.of("proximal", gradient) * (values[place] - start[place]))
                    if column.any_momentum:
                        gradient.add_(column.of("momentum", gradient) * velocity[place] if step else 0)
                        velocity[place] = gradient.clone()
                    gradient.mul_(column.of("learning_rate", gradient))
                    if not column.alike_steps:
                        done = torch.as_tensor(column.of("steps", gradient)) <= step
                        gradient.masked_fill_(done, 0)
                    values[place] = torch.sub(values[place], gradient, out=gradient)  # (k, …), in the memory it has
        return _flat(values, start)

    def _gradients(self, values: list[Tensor], mask: Tensor, batch: Batch, *, shared: bool) -> list[Tensor]:
        named = {name: part[0] if shared else part for name, part in zip(self._names, values, strict=True)}
        dims = (None if shared else 0, 0, *(0 for _ in batch))
        every: Any = torch.func.vmap(self._gradient, in_dims=dims, randomness="different")
        with torch.enable_grad():
            found: dict[str, Tensor] = every(named, mask, *batch)
        return [found[name].detach() for name in self._names]

    def _at_once(self, records: Batch, rows: int) -> int:
        """How many clients of at most ``rows`` records fit into the room."""
        a_row = 2 * sum(part[:1].numel() * part.element_size() for part in records) + self._bytes_a_row
        each = _COPIES * sum(part.numel() * max(4, part.element_size()) for part in self._parameters) + a_row * max(
            1, rows
        )
        if self.device.type == "cuda":
            room = self._room or free_memory(self.device) // 4
            return max(1, int(room // each))
        cached = min(_MOST, max(_LEAST, _CACHED // (4 * self.dimension)))
        return max(1, min(cached, int((self._room or _ROOM) // each)))

    # ------------------------------------------------------------------------------------------- both ways, tried

    def _trial(self, records: Batch, rng: RandomSource) -> str:
        """Why side by side is not possible or not the same; empty when two made-up clients agree both ways."""
        for name, module in self._model.named_modules():
            if mixing_now(module):
                return f"{name or 'the model'} ({type(module).__name__}) takes statistics over the batch"
        made_up = tuple(_make_up(part) for part in records)
        shards = [np.array([0, 1, 2]), np.array([3, 4])]
        orders = [PlainOrders(steps=2, sampling=Everyone(), expected_batch=3.0, learning_rate=0.1)] * 2
        with _without_dropout(self._model):
            params = torch.cat([own.detach().flatten().double() for own in self._parameters]).cpu().numpy()
            try:
                expected = np.stack([self.alone(params, made_up, own, orders[0], rng) for own in shards])
                self._bytes_a_row = self._count_saved(made_up)
            except QuietsumError:
                raise
            except Exception as error:  # made-up rows that the task dislikes tell nothing about real ones
                return f"made-up rows could not be tried ({type(error).__name__})"
            try:
                with keep_unchanged(self._model):
                    found = self._chunk(self._split(params), made_up, shards, orders, rng)
            except Exception as error:
                return f"torch cannot batch this model ({str(error).splitlines()[0] if str(error) else error!r})"
        with np.errstate(invalid="ignore"):
            wrong = np.abs(found - expected).max()
        scale = max(float(np.abs(expected).max()), 1e-6)
        if not np.isfinite(expected).all() or not wrong <= 1e-3 * scale:
            return "rows of a batch mix, so padding would change the result"
        return ""

    def _count_saved(self, rows: Batch) -> float:
        """Bytes that autograd keeps for one row."""
        kept = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        noting = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.enable_grad(), keep_unchanged(self._model), noting:
            losses_of(self._loss, self._model, tuple(part.to(self.device) for part in rows), rows_of(rows)).sum()
        return 2 * kept / rows_of(rows)

    def _sum_of(self, batch: Batch, rows: int) -> Sequence[Tensor]:
        """Σ ∇ℓ_i by one backward pass; where that is not finite row by row, and a row that is not counts as zero."""
        if not rows:
            return [torch.zeros_like(parameter) for parameter in self._parameters]
        found = self._whole_sum(batch, rows)
        if rows > 1 and not all(bool(torch.isfinite(part).all()) for part in found):
            singly = [self._sum_of(tuple(part[i : i + 1] for part in batch), 1) for i in range(rows)]
            return [torch.stack(parts).sum(0) for parts in zip(*singly, strict=True)]
        finite = all(bool(torch.isfinite(part).all()) for part in found)
        return found if finite else [torch.zeros_like(part) for part in found]

    def _whole_sum(self, batch: Batch, rows: int) -> Sequence[Tensor]:
        with torch.enable_grad():
            total = losses_of(self._loss, self._model, batch, rows).sum()
            return torch.autograd.grad(total, self._parameters, allow_unused=True, materialize_grads=True)

    # ------------------------------------------------------------------------------------------------ vectors

    def _split(self, params: Floats) -> list[Tensor]:
        """A flat vector as the model's parameters, on its device and in its precision."""
        if np.shape(params) != (self.dimension,) or not np.isfinite(params).all():
            problem = f"is not one finite vector of {self.dimension}"
            raise InvalidParameter("params", f"an array of shape {np.shape(params)}", problem)
        parts = torch.split(torch.from_numpy(np.array(params, dtype=np.float64)).to(self.device), self._sizes)
        return [part.view(own.shape).to(own.dtype) for part, own in zip(parts, self._parameters, strict=True)]

    @contextlib.contextmanager
    def _swap(self) -> Iterator[None]:
        before = [parameter.detach().clone() for parameter in self._parameters]
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, before, strict=True):
                    parameter.copy_(value)


def _flat(values: Sequence[Tensor], start: Sequence[Tensor]) -> Floats:
    """Stacked new parameters as rows of new − old; both are taken in float64, so that nothing more is rounded."""
    sizes = [part.numel() for part in start]
    flat = torch.empty((len(values[0]), sum(sizes)), dtype=torch.float64, device=start[0].device)
    for out, value, old in zip(torch.split(flat, sizes, dim=1), values, start, strict=True):
        torch.sub(out.copy_(flat_rows(value)), old.flatten().double(), out=out)
    return np.asarray(flat.cpu().numpy(), dtype=np.float64)


def _make_up(part: Tensor) -> Tensor:
    """Five rows of the shape of ``part`` that belong to no person."""
    shape = (5, *part.shape[1:])
    if not part.is_floating_point():
        return torch.zeros(shape, dtype=part.dtype)
    count = int(np.prod(shape))
    return (torch.arange(count, dtype=torch.float64).mul_(0.754877666).frac_()).view(shape).to(part.dtype)


@contextlib.contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout stands still, so that both ways can be compared."""
    lent = [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p]
    chances = [module.p for module in lent]
    try:
        for module in lent:
            module.p = 0.0
        yield
    finally:
        for module, chance in zip(lent, chances, strict=True):
            module.p = chance
