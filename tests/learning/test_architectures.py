"""What people fine-tune: each architecture, whole, tied and with adapters, against the naive loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from learning.architectures import ARCHITECTURES, Tower, adapted, built  # noqa: E402
from quietsum import PrivacyConfig, PrivateTrainer  # noqa: E402
from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning.clipping import Clip, Flat, PerLayer  # noqa: E402
from quietsum.learning.engines.batch_mixing import mixes_examples  # noqa: E402
from quietsum.learning.engines.bookkeeping import BookkeepingEngine  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402

ROWS = 5
CASES = [
    (name, variant)
    for name, architecture in ARCHITECTURES.items()
    for variant in ("whole", "tied", "LoRA", "DoRA")
    if variant != "tied" or architecture.ties
]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_of(name: str, variant: str) -> nn.Module:
    if variant in ("LoRA", "DoRA"):
        return adapted(name, dora=variant == "DoRA")
    return built(name, tied=variant == "tied")


def typed(batch: tuple[Tensor, ...], dtype: Any) -> tuple[Tensor, ...]:
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in batch)


def summed(engine: str, model: nn.Module, loss: Any, batch: Any, clip: Clip) -> tuple[Tensor, Any]:
    made = engine_for(engine, model, loss, clip)
    return torch.cat([part.flatten() for part in made.clipped_sum(batch)]), made


def apart(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize(("name", "variant"), CASES, ids=[f"{name}, {variant}" for name, variant in CASES])
@pytest.mark.some(14)
def test_the_clipped_sum_is_that_of_a_loop_and_no_module_is_differentiated_alone(name: str, variant: str) -> None:
    architecture = ARCHITECTURES[name]
    for dtype, most in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, batch = model_of(name, variant).to(dtype), typed(architecture.batch(ROWS), dtype)
        clip = Flat(max_norm=0.5) if dtype == torch.float32 else PerLayer(max_norm=0.5)
        loop, _ = summed("naive", model, architecture.loss, batch, clip)
        found, engine = summed("auto", model, architecture.loss, batch, clip)
        assert apart(found, loop) < most
        assert (engine.name, engine.why) == (
            "bookkeeping", "every trainable layer is known, so one backward pass is enough"
        )  # fmt: skip


def test_a_tied_table_is_one_parameter_with_both_jobs() -> None:
    """The control: without the cross term the norms are others, so the clipped sums are."""
    for name in ("GPT-2", "Llama", "T5"):
        architecture, model = ARCHITECTURES[name], built(name, tied=True).double()
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        assert model.get_output_embeddings().weight is table  # type: ignore[operator]
        losses = architecture.loss(model, architecture.batch(ROWS))
        (whole,) = torch.autograd.grad(losses[0], [table])
        assert bool((whole[2:].norm(dim=1) > 0).all())  # rows that were never looked up have gradients of the output


@pytest.mark.parametrize("name", ["GPT-2", "CLIP vision"])
def test_batches_of_another_size_are_served_by_the_same_engine(name: str) -> None:
    """Some as long as a text, or as one row of patches: what looks like the examples' dimension may be another."""
    architecture, clip = ARCHITECTURES[name], Flat(max_norm=0.5)
    model = built(name).double()
    engine = engine_for("bookkeeping", model, architecture.loss, clip)
    for rows in (4, 5, 1, 7, 2, 3, 16):
        batch = typed(architecture.batch(rows), torch.float64)
        found = torch.cat([part.flatten() for part in engine.clipped_sum(batch)])
        assert apart(found, summed("naive", model, architecture.loss, batch, clip)[0]) < 1e-10


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "ViT"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    architecture, clip = ARCHITECTURES[name], Flat(max_norm=0.5)
    model, batch = built(name).double(), typed(architecture.batch(ROWS), torch.float64)
    loop, _ = summed("naive", model, architecture.loss, batch, clip)
    model.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    found, engine = summed("auto", model, architecture.loss, batch, clip)
    assert engine.name == "bookkeeping"
    assert apart(found, loop) < 1e-10


def test_padding_adds_nothing() -> None:
    """The same texts with more padding behind them give the same sum."""
    architecture, clip = ARCHITECTURES["Llama"], Flat(max_norm=0.5)
    model, (tokens, mask) = built("Llama").double(), architecture.batch(ROWS)
    one, _ = summed("auto", model, architecture.loss, (tokens, mask), clip)
    longer = (F.pad(tokens, (0, 3), value=1), F.pad(mask, (0, 3)))
    assert apart(summed("auto", model, architecture.loss, longer, clip)[0], one) < 1e-10


def test_a_frozen_backbone_costs_nothing() -> None:
    """No note is taken of frozen layers, and the backward pass ends at the first one that is trained."""
    architecture, model = ARCHITECTURES["ViT"], built("ViT")
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    seen: list[bool] = []
    backbone: Any = model.vit
    backbone.register_forward_hook(lambda module, given, out: seen.append(out.last_hidden_state.requires_grad))
    engine = engine_for("bookkeeping", model, architecture.loss, Flat(max_norm=0.5))
    found = engine.clipped_sum(architecture.batch(ROWS))
    assert [tuple(part.shape) for part in found] == [(3, 16), (3,)]
    assert seen and not any(seen)


def test_dropout_is_drawn_for_each_example_and_the_books_still_agree_with_torch() -> None:
    """On shared positions too: with a clip so large that nothing is cut, the sum is the ordinary gradient."""
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=10, n_embd=16, n_layer=1, n_head=2, embd_pdrop=0.3, resid_pdrop=0.3, attn_pdrop=0.3,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model, architecture = transformers.GPT2LMHeadModel(config).double().train(), ARCHITECTURES["GPT-2"]
    batch, clip = architecture.batch(ROWS), Flat(max_norm=1e9)
    engine = engine_for("bookkeeping", model, architecture.loss, clip)
    for _ in range(6):  # the first ones are looked at more closely, and draw more often
        engine.clipped_sum(batch)
    torch.manual_seed(1)
    found = engine.clipped_sum(batch)
    torch.manual_seed(1)
    losses = architecture.loss(model, batch)
    plain = torch.autograd.grad(losses.sum(), engine.parameters)
    for one, two in zip(found, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "ViT"])
def test_half_precision_keeps_to_the_books(name: str) -> None:
    """No further from the exact sum than the loop is in half precision, up to a third."""
    architecture, model, clip = ARCHITECTURES[name], built(name), Flat(max_norm=0.5)
    batch = architecture.batch(ROWS)

    def mixed(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return architecture.loss(model, batch)

    exact, _ = summed("naive", model, architecture.loss, batch, clip)
    found, engine = summed("auto", model, mixed, batch, clip)
    loop, _ = summed("naive", model, mixed, batch, clip)
    assert engine.why == "every trainable layer is known, so one backward pass is enough"
    assert 0 < apart(found, exact) < 4 / 3 * apart(loop, exact)


def test_a_contrastive_loss_mixes_rows() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            vision, text = built("CLIP vision"), built("CLIP text")
            assert isinstance(vision, Tower) and isinstance(text, Tower)
            self.seen, self.read = vision.tower, text.tower

    def contrast(model: Any, batch: Any) -> Tensor:
        pictures, tokens, mask = batch
        seen = F.normalize(model.seen(pixel_values=pictures).image_embeds, dim=1)
        read = F.normalize(model.read(input_ids=tokens, attention_mask=mask).text_embeds, dim=1)
        return F.cross_entropy(10 * seen @ read.T, torch.arange(len(seen)), reduction="none")

    model = Both()
    batch = (ARCHITECTURES["CLIP vision"].batch(ROWS)[0], *ARCHITECTURES["CLIP text"].batch(ROWS))
    assert mixes_examples(model, contrast, batch)
    with pytest.raises(InvalidParameter, match="example i in row i"):
        engine_for("bookkeeping", model, contrast, Flat(max_norm=0.5)).clipped_sum(batch)


def test_compiled_models_give_the_same_sum() -> None:
    model, architecture = built("GPT-2").double(), ARCHITECTURES["GPT-2"]
    batch, clip = architecture.batch(ROWS), Flat(max_norm=0.5)
    loop, _ = summed("naive", model, architecture.loss, batch, clip)
    compiled: Callable[..., Any] = torch.compile(model, backend="eager")
    found, _ = summed("auto", compiled, architecture.loss, batch, clip)  # type: ignore[arg-type]
    assert apart(found, loop) < 1e-10


@pytest.mark.parametrize("variant", ["whole", "LoRA"])
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.some(2)
def test_the_step_of_each_architecture_is_recorded_as_one_graph(name: str, variant: str) -> None:
    architecture, model, clip = ARCHITECTURES[name], model_of(name, variant).double(), Flat(max_norm=0.5)
    batch = typed(architecture.batch(ROWS), torch.float64)
    engine = BookkeepingEngine(model, architecture.loss, clip, backend="eager")
    for _ in range(7):  # the first ones are looked at more closely, one is recorded
        found = torch.cat([part.flatten() for part in engine.clipped_sum(batch)])
    assert engine.why.endswith("the step is compiled")
    assert apart(found, summed("naive", model, architecture.loss, batch, clip)[0]) < 1e-10


def test_a_trainer_takes_the_model_as_it_is_and_stays_with_the_books() -> None:
    architecture, model = ARCHITECTURES["GPT-2"], adapted("GPT-2")
    config = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=16)
    trainer = PrivateTrainer(model, config, loss=architecture.loss, selfcheck=False, check_labels=False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer.train(torch.utils.data.TensorDataset(*architecture.batch(48)))
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert trainer.engine.startswith("bookkeeping: every trainable layer is known")
    assert moved == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.long
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_self_check_accepts_each_architecture(name: str) -> None:
    architecture, model = ARCHITECTURES[name], built(name)
    config = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=16)
    trainer = PrivateTrainer(model, config, loss=architecture.loss, check_labels=False)
    trainer.train(torch.utils.data.TensorDataset(*architecture.batch(48)))
    assert trainer.engine.startswith("bookkeeping: every trainable layer is known")
