"""States in place of scores: what a language model of transformers hands to its output layer, caught on the way.

Between its last block and its answer such a model calls one linear layer with a row for each word. Where a text has
millions of scores, the loss is better made of states and labels
(:func:`~quietsum.learning.engines.shared.vocabulary.score_tokens`). So the layer is lent a forward that hands back what
it was given, and the answer is looked at: if it is that very tensor, nothing else is done to scores, and states may
stand for them. A model that scales its scores, or bends them at a cap, answers with another tensor, and keeps its own
way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from quietsum.learning.engines.shared.vocabulary import score_tokens

__all__ = ["find_output_layer", "score_next"]

_LARGE = 1 << 22  # scores of one text from which on they are not all held


def find_output_layer(base: nn.Module, labels: Tensor) -> nn.Linear | None:
    """The output layer of ``base``, if a text has so many scores that they should not all be held; None if not.

    Guarantees: the shape of one text decides, and never how many there are or what they hold.
    """
    get: Any = getattr(base, "get_output_embeddings", None)
    layer = get() if callable(get) else None
    if type(layer) is not nn.Linear or labels.dim() != 2 or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    return layer if labels.shape[1] * layer.out_features >= _LARGE else None


def score_next(layer: nn.Linear, run: Callable[[], Tensor], labels: Tensor) -> Tensor | None:
    """−ln p of each next token, (n, t − 1); None if something is done to scores behind ``layer``."""
    before, seen = layer.__dict__.get("forward"), []

    def catch(given: Tensor) -> Tensor:
        seen.append(given)
        return given

    layer.__dict__["forward"] = catch
    try:
        answer = run()
    finally:
        if before is None:
            layer.__dict__.pop("forward", None)
        else:
            layer.__dict__["forward"] = before
    if len(seen) != 1 or answer is not seen[0] or answer.shape[:2] != labels.shape:
        return None
    return score_tokens(layer, answer[:, :-1], labels[:, 1:])
