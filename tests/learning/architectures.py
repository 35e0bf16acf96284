"""Small configurations of the architectures that people fine-tune, with random weights and a loss for each example.

Nothing is downloaded: each model is made from its configuration. A language model's loss is the mean over the tokens of
one text; CLIP's contrastive loss mixes rows, so its towers are trained on labels of their own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

__all__ = ["ARCHITECTURES", "Architecture", "adapted", "built"]

WORDS, LENGTH, CLASSES = 40, 7, 3


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a model is made, its loss, and what one example looks like."""

    make: Callable[[bool], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    batch: Callable[[int], tuple[Tensor, ...]]
    adapters: tuple[str, ...]  # the layers that LoRA is put on
    ties: bool = False  # whether there is an output layer to tie


def _text(rows: int) -> tuple[Tensor, ...]:
    """Tokens padded on the right, and where they are no padding; lengths differ."""
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(3, WORDS, (rows, LENGTH), generator=generator)
    lengths = torch.arange(rows) % (LENGTH - 3) + 4
    mask = torch.arange(LENGTH)[None] < lengths[:, None]
    return torch.where(mask, tokens, torch.ones_like(tokens)), mask.long()


def _next_token(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask = batch
    logits = model(input_ids=tokens, attention_mask=mask).logits[:, :-1]
    each = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    kept = mask[:, 1:].to(each.dtype)
    return (each * kept).sum(1) / kept.sum(1)


def _translation(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask = batch
    logits = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens.flip(1)).logits
    return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").mean(1)


def _labelled_text(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask = batch
    logits = model(input_ids=tokens, attention_mask=mask).logits
    return F.cross_entropy(logits, tokens[:, 0] % CLASSES, reduction="none")


def _pictures(rows: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 3, 8, 8, generator=generator), torch.arange(rows) % CLASSES


def _labelled_picture(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(pixel_values=batch[0]).logits, batch[1], reduction="none")


class Tower(nn.Module):
    """One tower of CLIP and a classifier on what it projects to."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower, self.head = tower, nn.Linear(8, CLASSES)


def _seen(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model.head(model.tower(pixel_values=batch[0]).image_embeds), batch[1], reduction="none")


def _read(model: Any, batch: Any) -> Tensor:
    tokens, mask = batch
    embedded = model.tower(input_ids=tokens, attention_mask=mask).text_embeds
    return F.cross_entropy(model.head(embedded), tokens[:, 0] % CLASSES, reduction="none")


def _gpt2(tied: bool) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH + 3, n_embd=16, n_layer=2, n_head=2, tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _llama(tied: bool) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _roberta(tied: bool) -> nn.Module:
    config = transformers.RobertaConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=LENGTH + 3, type_vocab_size=1, pad_token_id=1, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0,
    )  # fmt: skip
    return transformers.RobertaForSequenceClassification(config)


def _t5(tied: bool) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", tie_word_embeddings=tied, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def _vit(tied: bool) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
        num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def _clip_vision(tied: bool) -> nn.Module:
    config = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, projection_dim=8, num_hidden_layers=2, num_attention_heads=2,
        image_size=8, patch_size=4,
    )  # fmt: skip
    return Tower(transformers.CLIPVisionModelWithProjection(config))


def _clip_text(tied: bool) -> nn.Module:
    config = transformers.CLIPTextConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, projection_dim=8, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    return Tower(transformers.CLIPTextModelWithProjection(config))


ARCHITECTURES: dict[str, Architecture] = {
    "GPT-2": Architecture(_gpt2, _next_token, _text, ("c_attn",), ties=True),
    "Llama": Architecture(_llama, _next_token, _text, ("q_proj", "v_proj"), ties=True),
    "RoBERTa": Architecture(_roberta, _labelled_text, _text, ("query", "value")),
    "T5": Architecture(_t5, _translation, _text, ("q", "v"), ties=True),
    "ViT": Architecture(_vit, _labelled_picture, _pictures, ("q_proj", "v_proj")),
    "CLIP vision": Architecture(_clip_vision, _seen, _pictures, ("q_proj", "v_proj")),
    "CLIP text": Architecture(_clip_text, _read, _text, ("q_proj", "v_proj")),
}


def built(name: str, *, tied: bool = False) -> nn.Module:
    """The model with weights of some size, the same ones every time."""
    generator = torch.Generator().manual_seed(7)
    model = ARCHITECTURES[name].make(tied)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.train()


def adapted(name: str, *, dora: bool = False) -> nn.Module:
    """The same with LoRA adapters, of which neither half is zero; all else is frozen."""
    architecture = ARCHITECTURES[name]
    config = peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=list(architecture.adapters), use_dora=dora, fan_in_fan_out=name == "GPT-2"
    )
    model = built(name)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        inside: Any = model.tower if isinstance(model, Tower) else model
        peft.inject_adapter_in_model(config, inside)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if "lora_B" in path:
                    parameter.normal_(std=0.3)
    return model.train()
