"""Recurrent modules run step by step, so that every gate is a Linear layer that can be watched.

torch runs nn.GRU, nn.LSTM and nn.RNN as one fused operation whose inner gradients are hidden. While an engine works,
:func:`unroll` lends these modules (and their cells) an equivalent forward written with Linear steps:

    gi = W_ih x_t + b_ih        gh = W_hh h_{t−1} + b_hh
    GRU   r = σ(gi_r + gh_r), z = σ(gi_z + gh_z), n = tanh(gi_n + r·gh_n), h = n + z·(h − n)
    LSTM  i, f, g, o from gi + gh, c = σ(f)·c + σ(i)·tanh(g), h = σ(o)·tanh(c)

(torch.nn's own documentation). The parameters, results and random numbers stay those of the module.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["RECURRENT", "Note", "names_in", "unroll"]

RECURRENT = (nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell)

Note: TypeAlias = Callable[[nn.Module, str, Tensor, Tensor], None]
"""Called at every Linear step: module, name of the weight, what came in, what went out."""


def names_in(module: nn.Module) -> list[tuple[str, str]]:
    """The (weight, bias) pairs of a recurrent module, one per Linear step."""
    weights = [name for name, _ in module.named_parameters(recurse=False) if name.startswith("weight_")]
    return [(name, name.replace("weight_", "bias_", 1)) for name in weights]


def can_unroll(module: nn.Module) -> bool:
    """Whether the module is one of those above with nothing unusual about it."""
    return type(module) in RECURRENT and not getattr(module, "proj_size", 0)


@contextlib.contextmanager
def unroll(model: nn.Module, note: Note | None) -> Iterator[None]:
    """Lend every recurrent module its step-by-step forward, and take it back."""
    lent = [module for module in model.modules() if can_unroll(module)]
    if not lent:
        yield
        return
    for module in lent:
        cell = isinstance(module, nn.GRUCell | nn.LSTMCell | nn.RNNCell)
        module.__dict__["forward"] = functools.partial(_cell_forward if cell else _forward, module, note)
    try:
        yield
    finally:
        for module in lent:
            module.__dict__.pop("forward", None)


def _step(module: Any, note: Note | None, weight: str, x: Tensor) -> Tensor:
    bias = getattr(module, weight.replace("weight_", "bias_", 1)) if module.bias else None
    out = F.linear(x, getattr(module, weight), bias)
    if note is not None:
        note(module, weight, x, out)
    return out


def _gates(kind: str, gi: Tensor, gh: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The next hidden state, and the next cell state of an LSTM."""
    if kind == "GRU":
        ir, iz, new = gi.chunk(3, -1)
        hr, hz, hn = gh.chunk(3, -1)
        fresh = torch.tanh(new + torch.sigmoid(ir + hr) * hn)
        return fresh + torch.sigmoid(iz + hz) * (h - fresh), None
    if kind == "LSTM":
        assert c is not None
        i, f, g, o = (gi + gh).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    return torch.relu(gi + gh) if kind.lower().endswith("relu") else torch.tanh(gi + gh), None


def _kind(module: Any) -> str:
    if isinstance(module, nn.GRU | nn.GRUCell):
        return "GRU"
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return "LSTM"
    return str(module.nonlinearity)


def _cell_forward(module: Any, note: Note | None, x: Tensor, hx: Any = None) -> Any:
    kind = _kind(module)
    single = x.dim() == 1
    x = x[None] if single else x
    empty = x.new_zeros((len(x), module.hidden_size))
    if kind == "LSTM":
        h, c = (empty, empty) if hx is None else tuple(part[None] if part.dim() == 1 else part for part in hx)
    else:
        h, c = (empty if hx is None else hx[None] if hx.dim() == 1 else hx), None
    gi, gh = _step(module, note, "weight_ih", x), _step(module, note, "weight_hh", h)
    h, c = _gates(kind, gi, gh, h, c)
    if single:
        h, c = h[0], (None if c is None else c[0])
    return h if c is None else (h, c)


def _forward(module: Any, note: Note | None, x: Any, hx: Any = None) -> Any:
    if not isinstance(x, Tensor):
        from quietsum.errors import InvalidParameter

        raise InvalidParameter(
            "model", type(module).__name__, "was given a packed sequence", "pad the sequences and mask the loss instead"
        )
    kind, single = _kind(module), x.dim() == 2
    x = x[None] if single else x if module.batch_first else x.transpose(0, 1)  # n, t, features
    directions = 2 if module.bidirectional else 1
    shape = (module.num_layers * directions, len(x), module.hidden_size)
    hidden, cells = hx if kind == "LSTM" and hx is not None else (hx, None)
    hidden = x.new_zeros(shape) if hidden is None else hidden.view(shape)
    cells = x.new_zeros(shape) if cells is None else cells.view(shape)
    last_hidden, last_cells = [], []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            slot = layer * directions + direction
            gates = _step(module, note, "weight_ih" + suffix, x).unbind(1)
            h, c, seen = hidden[slot], cells[slot], []
            for gi in reversed(gates) if direction else gates:
                h, after = _gates(kind, gi, _step(module, note, "weight_hh" + suffix, h), h, c)
                c = c if after is None else after
                seen.append(h)
            outputs.append(torch.stack(seen[::-1] if direction else seen, 1))
            last_hidden.append(h)
            last_cells.append(c)
        x = torch.cat(outputs, 2) if directions == 2 else outputs[0]
        if module.dropout and layer < module.num_layers - 1:
            x = F.dropout(x, module.dropout, module.training)
    out = x[0] if single else x if module.batch_first else x.transpose(0, 1)
    final = torch.stack(last_hidden)
    final = final[:, 0] if single else final
    if kind != "LSTM":
        return out, final
    cell = torch.stack(last_cells)
    return out, (final, cell[:, 0] if single else cell)
