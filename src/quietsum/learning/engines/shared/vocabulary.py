"""A loss over a large vocabulary, without a table of scores for all tokens.

A language model ends in a matrix W with a row for each word, and its loss takes the logarithm of a softmax over all
rows. The scores of n texts of t tokens are n · t · v numbers: with 50,000 words, 256 tokens and 32 texts 1.6 GB,
several times over. Only sums over the words are ever needed, so they are taken some words at a time. With the state
h_t, the label y_t and the gradient g_t at the loss of token t:

    loss          ℓ_t = L_t − W[y_t] h_t,   L_t = ln Σ_k exp(W[k] h_t)          (some words after others)
    at the score  d_tk = g_t (exp(W[k] h_t − L_t) − [k = y_t])                  (made anew, some words at a time)
    at the state  Σ_k d_tk W[k]
    the norm      ‖Σ_t d_t h_tᵀ‖² = Σ_ts (d_t·d_s)(h_t·h_s),   d_t·d_s = Σ_k d_tk d_sk      Li et al. 2022, section 4
    the sum       Σ_i c_i Σ_t d_t h_tᵀ, row k after row k

Where W is also the table of the embedding, a lookup of token k adds e_k to the d's, and d_t·e_k is d_tk: scores of the
looked-up words alone. Scores are made four times instead of once, and memory does not grow with the vocabulary.

:func:`score_tokens` is the loss. A private step sees it through the layer that owns W, which notes states and labels in
place of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.engines.hardware.erase import erase
from quietsum.learning.engines.layers import EmbeddingUse, InstanceUse, Use, norms_from_products, per_example

__all__ = ["LabelledStates", "TiedVocabularyUse", "VocabularyUse", "score_tokens"]

_AT_ONCE = 1 << 24  # scores that are held at a time


def score_tokens(head: nn.Linear, states: Tensor, labels: Tensor) -> Tensor:
    """−ln p of each label under ``softmax(head(states))``, (n, t), without a table of all scores.

    ``states`` are (n, t, d), ``labels`` (n, t). A label that is no word, as −100, costs nothing. Call it inside a loss,
    with the model's own output layer: its weight may be tied to the embedding, frozen or trained.

    Guarantees: values, gradients, and per-example norms in a private step are those of
    ``cross_entropy(head(states), labels)``, up to rounding; no tensor has n · t · (words) numbers, unless that is less
    than sixteen million. A step that is recorded for torch.compile holds all scores.

    >>> head, states = nn.Linear(3, 7), torch.randn(2, 4, 3)
    >>> labels = torch.tensor([[1, 2, 3, -100], [0, 6, 5, 4]])
    >>> ours = score_tokens(head, states, labels)
    >>> plain = F.cross_entropy(head(states).transpose(1, 2), labels, reduction="none")
    >>> torch.allclose(ours, plain, atol=1e-6)
    True
    """
    if type(head) is not nn.Linear:
        problem = "is no torch.nn.Linear, whose weight and bias would be all there is to it"
        raise InvalidParameter("head", type(head).__name__, problem, "use cross_entropy of its scores")
    if states.dim() != 3 or labels.shape != states.shape[:2] or states.shape[2] != head.in_features:
        shapes = (tuple(states.shape), tuple(labels.shape))
        remedy = f"pass (n, t, {head.in_features}) and (n, t)"
        raise InvalidParameter("states", shapes, "are not a state and a label for each token", remedy)
    if torch.compiler.is_compiling():
        return _score_at_once(head, states, labels)
    device = states.device.type
    half = states.dtype if states.dtype in (torch.bfloat16, torch.float16) else None
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else half
    if "forward" not in head.__dict__:
        return _losses(states, head.weight, head.bias, labels, half)[0]
    noted = LabelledStates.of(states, labels, half)  # a private step watches the layer
    found: Tensor = head(input=noted)
    if found.shape != labels.shape:
        problem = "has another forward than torch.nn.Linear"
        raise InvalidParameter("head", type(head).__name__, problem, "use cross_entropy of its scores")
    return found


def _score_at_once(head: nn.Linear, states: Tensor, labels: Tensor) -> Tensor:
    scores = head(states)
    scores = scores if scores.dtype is torch.float64 else scores.float()
    known = (labels >= 0) & (labels < head.out_features)
    each = F.cross_entropy(scores.transpose(1, 2), torch.where(known, labels, 0), reduction="none")
    return torch.where(known, each, 0.0)


@final
class LabelledStates(Tensor):
    """States that know their labels: a linear layer makes losses of them instead of scores."""

    labels: Tensor
    rounded: torch.dtype | None  # the half precision of products
    sums: Tensor  # L_t, once the losses are made

    @staticmethod
    def of(states: Tensor, labels: Tensor, half: torch.dtype | None) -> LabelledStates:
        """The same states in the same graph."""
        noted = states.as_subclass(LabelledStates)
        noted.labels, noted.rounded = labels, half
        return noted

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is not F.linear:
                return func(*args, **(kwargs or {}))
            noted, weight, bias = args
            states = noted.as_subclass(Tensor)
            if states.requires_grad:  # the gradient of the layer itself is not torch's to make
                weight, bias = weight.detach(), None if bias is None else bias.detach()
            losses, noted.sums = _losses(states, weight, bias, noted.labels, noted.rounded)
            return losses


def _losses(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, half: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    losses, sums = _TokenLosses.apply(states, weight, bias, labels, half)  # type: ignore[no-untyped-call]
    return losses, sums.detach()


def _pieces(words: int, tokens: int) -> Iterator[slice]:
    """Some words at a time, so that so many tokens have no more than :data:`_AT_ONCE` scores."""
    step = max(1, _AT_ONCE // max(1, tokens))
    for start in range(0, words, step):
        yield slice(start, min(words, start + step))


def _scores(states: Tensor, weight: Tensor, bias: Tensor | None, half: torch.dtype | None) -> Tensor:
    """Scores of some words, in float32 or float64, from products in half precision if ``half`` says so."""
    if half is not None:
        states, weight, bias = states.to(half), weight.to(half), None if bias is None else bias.to(half)
    found = F.linear(states, weight, bias)
    return found if found.dtype is torch.float64 else found.float()


def _at_scores(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, sums: Tensor, g: Tensor, cut: slice,
    half: torch.dtype | None,
) -> Tensor:  # fmt: skip
    """d: the gradient at the scores of some words, (…, words)."""
    found = _scores(states, weight[cut], None if bias is None else bias[cut], half)
    found = (found - sums.unsqueeze(-1)).exp()
    places = torch.arange(cut.start, cut.stop, device=labels.device)
    found = torch.where(labels.unsqueeze(-1) == places, found - 1, found)
    return found * g.unsqueeze(-1)


class _TokenLosses(torch.autograd.Function):
    """ℓ and L of each token."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, half: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        exact = torch.float64 if states.dtype is torch.float64 else torch.float32
        with torch.autocast(states.device.type, enabled=False):
            sums = picked = None
            for cut in _pieces(len(weight), labels.numel()):
                found = _scores(states, weight[cut], None if bias is None else bias[cut], half)
                part = torch.logsumexp(found, -1)
                sums = part if sums is None else torch.logaddexp(sums, part)
                inside = (labels >= cut.start) & (labels < cut.stop)
                places = torch.where(inside, labels - cut.start, 0).unsqueeze(-1)
                own = torch.where(inside, found.gather(-1, places).squeeze(-1), 0.0)
                picked = own if picked is None else picked + own
        if sums is None or picked is None:
            raise InvalidParameter("head", 0, "has no words", "give it one output for each word")
        known = (labels >= 0) & (labels < len(weight))
        return torch.where(known, sums - picked, 0.0).to(exact), sums

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        states, weight, bias, labels, ctx.half = inputs
        ctx.save_for_backward(states, weight, bias, labels, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        states, weight, bias, labels, sums = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        known = (labels >= 0) & (labels < len(weight))
        g = torch.where(known, gradients[0], 0.0)
        at_states: Tensor | None = None
        rows: list[Tensor] = []
        shifts: list[Tensor] = []
        with torch.autocast(states.device.type, enabled=False):
            for cut in _pieces(len(weight), labels.numel()):
                d = _at_scores(states, weight, bias, labels, sums, g, cut, ctx.half)
                if wanted[0]:
                    part = d.to(states.dtype) @ weight[cut].to(states.dtype)
                    at_states = part if at_states is None else at_states + part
                if wanted[1]:
                    rows.append(d.flatten(0, -2).t() @ states.flatten(0, -2).to(d.dtype))
                if wanted[2]:
                    shifts.append(d.flatten(0, -2).sum(0))
        at_weight = torch.cat(rows).to(weight.dtype) if rows else None
        at_bias = torch.cat(shifts).to(bias.dtype) if shifts else None
        return at_states, at_weight, at_bias, None, None


# --------------------------------------------------------------------------------------------- in a private step


@final
class VocabularyUse:
    """The output layer of a language model: states (n, t, d), labels, L and g (n, t)."""

    __slots__ = ("_bias", "_g", "_half", "_labels", "_states", "_sums", "_trained", "_weight")

    def __init__(self, noted: LabelledStates, g: Tensor, module: nn.Linear, *, weight: bool, bias: bool) -> None:
        self._labels, self._half, self._sums = noted.labels, noted.rounded, noted.sums
        states = noted.detach().as_subclass(Tensor)
        self._states = states if self._half is None else states.to(self._half).float()
        words = module.out_features
        self._g = torch.where((self._labels >= 0) & (self._labels < words), g, 0.0)
        self._weight = module.weight.detach()
        self._bias = None if module.bias is None else module.bias.detach()
        self._trained = (weight, bias)

    def d(self, cut: slice, rows: slice = slice(None)) -> Tensor:
        """The gradient at the scores of some words, for some examples."""
        states, labels, sums, g = self._states[rows], self._labels[rows], self._sums[rows], self._g[rows]
        return _at_scores(states, self._weight, self._bias, labels, sums, g, cut, self._half)

    @property
    def states(self) -> Tensor:
        """What came in."""
        return self._states

    def row_pieces(self, more: int = 0) -> Iterator[slice]:
        """Some examples at a time, so that products of their positions, and of ``more``, stay small."""
        rows, positions = self._labels.shape
        step = max(1, _AT_ONCE // (positions + more) ** 2)
        for start in range(0, rows, step):
            yield slice(start, min(rows, start + step))

    def words(self, rows: slice = slice(None)) -> Iterator[slice]:
        """Some words at a time, for some examples."""
        return _pieces(len(self._weight), self._labels[rows].numel())

    def pair_products(self, rows: slice) -> Tensor:
        """d_s·d_t for some examples: (n, t, t)."""
        total: Tensor | None = None
        for cut in self.words(rows):
            d = self.d(cut, rows)
            total = torch.bmm(d, d.transpose(1, 2)) if total is None else total.baddbmm_(d, d.transpose(1, 2))
        if total is None:
            raise InvalidParameter("head", 0, "has no words", "give it one output for each word")
        return total

    def at_tokens(self, tokens: Tensor, rows: slice) -> Tensor:
        """d_t at the words ``tokens`` (n, s) of each example: (n, s, t)."""
        table = self._weight[tokens]
        half = self._half
        states = self._states[rows]
        if half is not None:
            states, table = states.to(half), table.to(half)
        found = torch.bmm(table, states.transpose(1, 2))
        found = found if found.dtype is torch.float64 else found.float()
        found = found if self._bias is None else found + self._bias[tokens].unsqueeze(2)
        found = (found - self._sums[rows].unsqueeze(1)).exp()
        found = torch.where(tokens.unsqueeze(2) == self._labels[rows].unsqueeze(1), found - 1, found)
        return found * self._g[rows].unsqueeze(1)

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        weight, bias = self._trained
        found = [self._weight_norms(order)] if weight else []
        return [*found, per_example(self._shifts(), order)] if bias else found

    def _weight_norms(self, order: int) -> Tensor:
        found = []
        ghost = order == 2 and self._labels.shape[1] <= 2 * self._states.shape[2]
        for rows in self.row_pieces():
            states = self._states[rows]
            if ghost:
                found.append(norms_from_products(self.pair_products(rows), torch.bmm(states, states.transpose(1, 2))))
                continue
            each = [
                per_example(torch.bmm(self.d(cut, rows).transpose(1, 2), states), order) for cut in self._narrow(rows)
            ]
            found.append(torch.linalg.vector_norm(torch.stack(each), ord=order, dim=0))
        return torch.cat(found)

    def _narrow(self, rows: slice) -> Iterator[slice]:
        """Some words at a time, so that their gradients for each of some examples stay small, too."""
        count, positions = self._labels[rows].shape
        return _pieces(len(self._weight), count * max(positions, self._states.shape[2]))

    def _shifts(self) -> Tensor:
        return torch.cat([self.d(cut).sum(1) for cut in self.words()], 1)

    def apart(self) -> tuple[Use, Use]:
        """Weight and bias on their own."""
        shifts = InstanceUse([self._shifts()])
        self._trained = (True, False)
        return self, shifts

    def instances(self) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        found = []
        if self._trained[0]:
            found.append(torch.cat([torch.bmm(self.d(c).transpose(1, 2), self._states) for c in self.words()], 1))
        return [*found, self._shifts()] if self._trained[1] else found

    def drop(self, bad: Tensor) -> None:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        self._g, self._sums = erase(self._g, bad, own=False), erase(self._sums, bad, own=False)
        self._states = erase(self._states, bad, own=False)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        rows: list[Tensor] = []
        shifts: list[Tensor] = []
        weight, bias = self._trained
        states = self._states.flatten(0, 1)
        for cut in self.words():
            d = self.d(cut)
            if bias:
                shifts.append(factors[-1] @ d.sum(1))
            if weight:
                rows.append((d * factors[0][:, None, None]).flatten(0, 1).t() @ states)
        return [torch.cat(part) for part in (rows, shifts) if part]


@final
class TiedVocabularyUse:
    """Lookups in a table, and the output layer that has the same table."""

    __slots__ = ("_head", "_looked")

    def __init__(self, looked: Sequence[EmbeddingUse], head: VocabularyUse) -> None:
        self._looked, self._head = looked, head

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        if order != 2:
            return [per_example(self.instances()[0], order)]
        pairs = [use.look_up() for use in self._looked]
        tokens, g = (torch.cat([pair[side] for pair in pairs], 1) for side in (0, 1))
        head, found = self._head, []
        for rows in head.row_pieces(tokens.shape[1]):
            some = tokens[rows]
            right = torch.cat([g[rows].to(head.states.dtype), head.states[rows]], 1)
            same = (some[:, :, None] == some[:, None, :]).to(right.dtype)
            met = head.at_tokens(some, rows).to(right.dtype)
            above = torch.cat([same, met], 2)
            below = torch.cat([met.transpose(1, 2), head.pair_products(rows).to(right.dtype)], 2)
            found.append(norms_from_products(torch.cat([above, below], 1), torch.bmm(right, right.transpose(1, 2))))
        return [torch.cat(found)]

    def instances(self) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        return [sum((use.instances()[0] for use in self._looked), self._head.instances()[0])]

    def drop(self, bad: Tensor) -> None:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        self._head.drop(bad)
        for use in self._looked:
            use.drop(bad)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        return [sum((use.weigh(factors)[0] for use in self._looked), self._head.weigh(factors)[0])]
