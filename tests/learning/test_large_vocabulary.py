"""The loss over a large vocabulary: the sums of a naive loop, and no tensor of (texts × tokens × words)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from learning.decoders import Gpt  # noqa: E402
from learning.test_vocabulary import Wide  # noqa: E402
from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning import score_tokens  # noqa: E402
from quietsum.learning.clipping import Clip, Flat, FlatL1, PerLayer  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402
from quietsum.learning.engines.shared import vocabulary  # noqa: E402

ROWS, LENGTH, WORDS, WIDTH = 4, 8, 997, 16  # those of test_vocabulary, whose counter is used


class Decoder(Gpt):
    """States instead of scores."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def decoder(kind: str, dtype: Any) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(WORDS, LENGTH, WIDTH, 1, 2)
    if kind == "bias":
        model.head = nn.Linear(WIDTH, WORDS)
    if kind == "tied":
        model.head.weight = model.tokens.weight
    if kind == "tied with bias":
        model.head = nn.Linear(WIDTH, WORDS)
        model.head.weight = model.tokens.weight
    if kind == "frozen":
        model.head.requires_grad_(False)
    if kind == "head alone":
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    return model.to(dtype)


def text(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Tokens, and labels of which some are left out; one text has none at all."""
    tokens = torch.randint(0, WORDS, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    labels = tokens[:, 1:].clone()
    labels[0, 5:], labels[1, ::2], labels[2] = -100, -100, -100
    return tokens[:, :-1], labels


def mean(each: Tensor, labels: Tensor) -> Tensor:
    known = labels >= 0
    return (each * known).sum(1) / known.sum(1).clamp(min=1)


def ours(model: Any, batch: Any) -> Tensor:
    return mean(score_tokens(model.head, model(batch[0]), batch[1]), batch[1])


def plain(model: Any, batch: Any) -> Tensor:
    scores = model.head(model(batch[0]))
    each = F.cross_entropy(scores.movedim(-1, 1), batch[1], reduction="none", ignore_index=-100)
    return mean(each, batch[1])


def summed(engine: str, model: nn.Module, loss: Any, clip: Clip, batch: Any = None) -> Tensor:
    made = engine_for(engine, model, loss, clip)
    found = torch.cat([part.flatten() for part in made.clipped_sum(text() if batch is None else batch)])
    assert made.name == engine
    return found


def apart(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scores of a few words at a time, as with a real vocabulary."""
    monkeypatch.setattr(vocabulary, "_AT_ONCE", 60 * ROWS * LENGTH)
    yield


KINDS = ["untied", "bias", "tied", "tied with bias", "frozen", "head alone"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["64", "32"])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_a_naive_loop_over_all_scores(kind: str, dtype: Any, within: float) -> None:
    model = decoder(kind, dtype)
    for clip in (Flat(max_norm=0.05), Flat(max_norm=50.0)):
        assert apart(summed("bookkeeping", model, ours, clip), summed("naive", model, plain, clip)) < within
    wrong = summed("naive", model, lambda m, b: plain(m, (b[0], b[1].flip(1))), Flat(max_norm=0.05))
    assert apart(summed("bookkeeping", model, ours, Flat(max_norm=0.05)), wrong) > 1e-2  # the control


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("engine", ["vmap", "naive"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_engines_take_the_same_loss(kind: str, engine: str) -> None:
    model, clip = decoder(kind, torch.float64), Flat(max_norm=0.05)
    assert apart(summed(engine, model, ours, clip), summed("naive", model, plain, clip)) < 1e-10


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", ["untied", "bias", "tied"])
def test_other_clips_take_the_same_loss(kind: str) -> None:
    model = decoder(kind, torch.float64)
    for clip in (PerLayer(max_norm=0.05), FlatL1(max_norm=0.5)):
        assert apart(summed("bookkeeping", model, ours, clip), summed("naive", model, plain, clip)) < 1e-10


@pytest.mark.usefixtures("few")
def test_long_texts_take_the_other_way_to_the_norm() -> None:
    torch.manual_seed(0)
    model = Decoder(WORDS, 48, WIDTH, 1, 2).double()
    tokens = torch.randint(0, WORDS, (3, 49), generator=torch.Generator().manual_seed(2))
    batch, clip = (tokens[:, :-1], tokens[:, 1:]), Flat(max_norm=0.05)
    assert 2 * WIDTH < 48
    found = [summed(*given, clip, batch) for given in (("bookkeeping", model, ours), ("naive", model, plain))]
    assert apart(*found) < 1e-10


@pytest.mark.usefixtures("few")
def test_a_text_that_is_not_finite_counts_as_zero() -> None:
    model, clip = decoder("untied", torch.float64), Flat(max_norm=0.05)
    batch = text()

    def broken(model: Any, batch: Any) -> Tensor:
        states = model(batch[0])
        scale = torch.ones(len(states), 1, 1, dtype=states.dtype)
        scale[1] = float("inf")
        return mean(score_tokens(model.head, states * scale, batch[1]), batch[1])

    engine = engine_for("bookkeeping", model, ours, clip)
    engine.clipped_sum(batch)
    engine._loss = broken  # type: ignore[attr-defined]  # what only some texts do
    found = torch.cat([part.flatten() for part in engine.clipped_sum(batch)])
    rest = tuple(part[torch.tensor([0, 2, 3])] for part in batch)
    assert apart(found, summed("naive", model, plain, clip, rest)) < 1e-10


def count(kind: str, loss: Any) -> list[str]:
    model, batch = decoder(kind, torch.float32), text()
    engine = engine_for("bookkeeping", model, loss, Flat(max_norm=0.1))
    for _ in range(5):
        engine.clipped_sum(batch)
    with Wide() as made:
        engine.clipped_sum(batch)
    return made.made


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_of_texts_times_tokens_times_words_is_made(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count(kind, ours) == []
    assert count(kind, plain) != []  # the control
    monkeypatch.setattr(vocabulary, "_AT_ONCE", WORDS * ROWS * LENGTH)
    assert count(kind, ours) != []  # and another: all words at once


@pytest.mark.usefixtures("few")
def test_products_in_half_precision_stay_near_and_below_the_clip() -> None:
    model, clip, batch = decoder("tied", torch.float32), Flat(max_norm=0.05), text()

    def mixed(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ours(model, batch).float()

    found = summed("bookkeeping", model, mixed, clip)
    assert 0 < apart(found, summed("naive", model, plain, clip)) < 0.1
    for place in (0, 1, 3):
        alone = summed("bookkeeping", model, mixed, clip, tuple(part[place : place + 1] for part in batch))
        assert float(alone.norm()) <= 0.05 * (1 + 1e-5)


def test_what_is_no_output_layer_is_refused() -> None:
    states, labels = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(InvalidParameter, match=r"is no torch\.nn\.Linear"):
        score_tokens(nn.Sequential(nn.Linear(4, 5)), states, labels)  # type: ignore[arg-type]
    for wrong in ((states[0], labels[0]), (states, labels[:, :2]), (states[..., :2], labels)):
        with pytest.raises(InvalidParameter, match="a state and a label for each token"):
            score_tokens(nn.Linear(4, 5), *wrong)


# ---------------------------------------------------------------------------------------- models of transformers

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("peft")

from learning.architectures import adapted, built  # noqa: E402
from learning.test_named_rows import tokenised  # noqa: E402
from quietsum.learning.rows import output_layer  # noqa: E402
from quietsum.learning.rows.named import read_named  # noqa: E402
from quietsum.learning.step import cross_entropy  # noqa: E402

SMALL_ROWS = 6


def scored(model: nn.Module, name: str, monkeypatch: pytest.MonkeyPatch, *, large: bool) -> tuple[Tensor, int]:
    """The sum over tokenised texts, and how often the loss was made of states."""
    calls: list[int] = []

    def watch(*given: Any) -> Tensor:
        calls.append(1)
        return score_tokens(*given)

    with monkeypatch.context() as patch:
        patch.setattr(output_layer, "_LARGE", 1 if large else 1 << 40)
        patch.setattr(output_layer, "score_tokens", watch)
        patch.setattr(vocabulary, "_AT_ONCE", 9 * SMALL_ROWS * 7)
        named = read_named(tokenised(name, SMALL_ROWS), None, None, model=model, loss=cross_entropy)
        batch = tuple(torch.stack(parts) for parts in zip(*(named.data[i] for i in range(SMALL_ROWS)), strict=True))
        engine = engine_for("bookkeeping", model, named.loss, Flat(max_norm=0.1))
        found = torch.cat([part.flatten() for part in engine.clipped_sum(batch)])
    return found, len(calls)


@pytest.mark.parametrize("variant", ["whole", "tied", "LoRA", "DoRA"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_language_model_of_transformers_hands_over_states(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = adapted(name, dora=variant == "DoRA") if "R" in variant else built(name, tied=variant == "tied")
    model = made.double().eval()
    whole, none = scored(model, name, monkeypatch, large=False)
    found, calls = scored(model, name, monkeypatch, large=True)
    assert none == 0 < calls
    assert apart(found, whole) < 1e-10
    assert "forward" not in vars(model.get_output_embeddings())  # type: ignore[operator]


def test_a_model_that_changes_its_scores_keeps_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.GraniteConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, logits_scaling=3.0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GraniteForCausalLM(config).double().eval()
    whole, _ = scored(model, "Llama", monkeypatch, large=False)
    found, calls = scored(model, "Llama", monkeypatch, large=True)
    assert calls == 0 and apart(found, whole) < 1e-10
