"""Records that are dicts: tokenised data sets, and the loss that a model of transformers has for one of them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Subset  # noqa: E402

from learning.architectures import ARCHITECTURES, adapted, built  # noqa: E402
from quietsum import PrivacyConfig, PrivateTrainer, make_private  # noqa: E402
from quietsum.errors import InvalidParameter, QuietsumError  # noqa: E402
from quietsum.learning.rows.named import ByColumns, ModelLoss, RecordColumns, check_own_loss, read_named  # noqa: E402

CONFIG = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=8)


class Tokenised:
    """The interface of ``datasets.Dataset``: a length, and rows that are dicts of plain numbers and words."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return dict(self._rows[place])


def tokenised(name: str, rows: int) -> Tokenised:
    parts = [part.tolist() for part in ARCHITECTURES[name].batch(rows)]
    if name == "ViT":
        return Tokenised([{"pixel_values": x, "label": y} for x, y in zip(*parts, strict=True)])
    found: list[dict[str, Any]] = [
        {"text": "words", "input_ids": tokens, "attention_mask": mask} for tokens, mask in zip(*parts, strict=True)
    ]
    for place, row in enumerate(found):
        if name == "RoBERTa":
            row["label"] = place % 3
        if name == "T5":
            row["labels"] = [-100, *row["input_ids"][1:]]
    return Tokenised(found)


def real(rows: Tokenised) -> Any:
    """The package itself, where it is installed: it brings 170 MB of pyarrow, which no other test needs."""
    datasets: Any = pytest.importorskip("datasets")
    return datasets.Dataset.from_list([rows[place] for place in range(len(rows))])


@pytest.mark.parametrize("kind", [lambda rows: rows, real], ids=["its interface", "the package datasets"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "RoBERTa", "T5", "ViT"])
@pytest.mark.some(4)
def test_a_tokenised_data_set_trains_a_model_as_it_is(name: str, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = adapted(name)
    trainer = PrivateTrainer(model, CONFIG, selfcheck=False)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    with caplog.at_level(logging.WARNING):
        history = trainer.train(kind(tokenised(name, 24)), val_loader=kind(tokenised(name, 9)))
    moved = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    assert moved == {name for name, one in model.named_parameters() if one.requires_grad}
    assert np.isfinite(history.metrics["loss"]) and history.stopped == "finished"
    assert ("left out of the records: the columns text" in caplog.text) == (name != "ViT")


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "RoBERTa", "T5", "ViT"])
def test_the_loss_of_a_record_is_the_models_own_of_that_record_alone(name: str) -> None:
    model, rows = built(name).eval(), tokenised(name, 6)
    named = read_named(rows, None, None, model=model, loss=PrivateTrainer(model, CONFIG).loss)
    batch = tuple(torch.stack(parts) for parts in zip(*(named.data[i] for i in range(6)), strict=True))
    found = named.loss(model, batch)
    for place in range(6):
        inputs = dict(zip(named.loss.columns.names, (part[place : place + 1] for part in batch), strict=True))  # type: ignore[attr-defined]
        if "labels" not in inputs:
            inputs["labels"] = torch.where(inputs["attention_mask"] > 0, inputs["input_ids"], -100)
        torch.testing.assert_close(found[place], model(**inputs).loss)
    whole = dict(zip(named.loss.columns.names, batch, strict=True))  # type: ignore[attr-defined]
    if name in ("GPT-2", "Llama"):  # the control: of a batch the model's own is a mean over all tokens
        whole["labels"] = torch.where(whole["attention_mask"] > 0, whole["input_ids"], -100)
        assert abs(float((found.mean() - model(**whole).loss).detach())) > 1e-4


def test_a_loader_with_a_collator_of_transformers_is_taken() -> None:
    class Pads:
        """A collator that returns a dict of tensors, as those of transformers do."""

        def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
            keys = ("input_ids", "attention_mask")
            found = {key: torch.tensor([row[key] for row in rows]) for key in keys}
            return {**found, "labels": torch.where(found["attention_mask"] > 0, found["input_ids"], -100)}

    rows: Any = tokenised("GPT-2", 24)
    trainer = PrivateTrainer(adapted("GPT-2"), CONFIG, selfcheck=False)
    with pytest.warns(UserWarning, match="one record at a time"):
        history = trainer.train(DataLoader(rows, batch_size=8, shuffle=True, collate_fn=Pads()))
    assert history.stopped == "finished"


def test_a_loss_of_ones_own_gets_dicts() -> None:
    seen: list[set[str]] = []

    def loss(model: nn.Module, batch: Any) -> Any:
        seen.append(set(batch))
        return model(batch["x"]).square().mean(1)

    rows: Any = Tokenised([{"x": [float(i), 1.0], "weight": 2.0, "note": "no number"} for i in range(20)])
    PrivateTrainer(nn.Linear(2, 2), CONFIG, loss=loss).train(rows)
    assert seen and all(names == {"x", "weight"} for names in seen)


def test_a_loop_by_hand_takes_the_same_rows() -> None:
    model = adapted("GPT-2")
    rows: Any = tokenised("GPT-2", 24)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01)
    model, private, loader = make_private(model, optimizer, rows, config=CONFIG, selfcheck=False)
    for _ in loader:
        private.step()
    assert private.guarantee().epsilon <= 8


def test_records_shorter_than_the_example_are_filled_up_by_public_constants() -> None:
    columns = RecordColumns(("input_ids", "attention_mask", "labels"), length=5, padding=9)
    row = {"input_ids": [3, 4], "attention_mask": [1, 1], "labels": [3, 4]}
    filled = ByColumns([row], columns)[0]
    assert [part.tolist() for part in filled] == [[3, 4, 9, 9, 9], [1, 1, 0, 0, 0], [3, 4, -100, -100, -100]]
    example = {"input_ids": [0] * 7, "attention_mask": [1] * 7}
    uneven: Any = Tokenised([
        {"input_ids": list(range(3, 3 + n)), "attention_mask": [1] * n} for n in (4, 5, 6, 7) for _ in range(6)
    ])  # fmt: skip
    trainer = PrivateTrainer(adapted("GPT-2"), CONFIG, selfcheck=False)
    trainer.train(uneven, example=example)
    with pytest.raises(InvalidParameter, match="differ in shape or type"):
        PrivateTrainer(adapted("GPT-2"), CONFIG, selfcheck=False).train(uneven)


def test_no_record_is_read_where_their_number_is_private() -> None:
    class Unread(Tokenised):
        def __getitem__(self, place: int) -> dict[str, Any]:
            raise AssertionError("a record was read")

    config = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=8, public_size=24)
    rows: Any = Unread([{"input_ids": [1]}])
    with pytest.raises(InvalidParameter, match="example"):
        PrivateTrainer(adapted("GPT-2"), config, selfcheck=False).train(rows)
    example = {"input_ids": [1] * 7, "attention_mask": [1] * 7}
    named = read_named(
        rows, None, example, model=built("GPT-2"), loss=PrivateTrainer(nn.Linear(2, 2), CONFIG).loss,
        size_is_private=True,
    )  # fmt: skip
    assert isinstance(named.loss, ModelLoss)


def test_what_cannot_be_read_by_columns_is_refused_before_anything_is_charged() -> None:
    words: Any = Tokenised([{"text": "a"}] * 20)
    with pytest.raises(InvalidParameter, match="tokenise them first"):
        PrivateTrainer(built("GPT-2"), CONFIG).train(words)
    plain: Any = Tokenised([{"x": [1.0, 2.0]}] * 20)
    with pytest.raises(InvalidParameter, match="no model of transformers"):
        PrivateTrainer(nn.Linear(2, 2), CONFIG).train(plain)
    unlabelled: Any = Tokenised([{"input_ids": [3] * 7, "attention_mask": [1] * 7}] * 20)
    with pytest.raises(InvalidParameter, match="none with labels"):
        PrivateTrainer(built("RoBERTa"), CONFIG).train(unlabelled)
    rows: Any = tokenised("GPT-2", 24)
    with pytest.raises(InvalidParameter, match="holds training records"):
        PrivateTrainer(built("GPT-2"), CONFIG).train(rows, val_loader=rows)
    halves: Any = (Subset(rows, range(12)), Subset(rows, range(12, 24)))
    PrivateTrainer(adapted("GPT-2"), CONFIG, selfcheck=False).train(halves[0], val_loader=halves[1])


def test_a_model_whose_own_loss_is_another_one_is_refused() -> None:
    class Scaled(transformers.GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            found = super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            if found.loss is not None:
                found.loss = 2 * found.loss
            return found

    model, rows = Scaled(built("GPT-2").config), tokenised("GPT-2", 24)
    with pytest.raises(InvalidParameter, match="has a loss of its own"):
        PrivateTrainer(model, CONFIG).train(rows)
    loss = ModelLoss.of(built("GPT-2"), RecordColumns(("input_ids", "attention_mask")))
    check_own_loss(built("GPT-2"), loss, ARCHITECTURES["GPT-2"].batch(4))


# ------------------------------------------------------------------------------------------------- adapters


def lora(name: str = "GPT-2", **options: Any) -> Any:
    torch.manual_seed(3)
    targets = list(ARCHITECTURES[name].adapters)
    return peft.get_peft_model(built(name), peft.LoraConfig(r=2, target_modules=targets, **options)).train()


def train(model: Any, **options: Any) -> PrivateTrainer:
    rows: Any = tokenised("GPT-2", 24)
    trainer = PrivateTrainer(model, CONFIG, selfcheck=False, **options)
    trainer.train(rows)
    return trainer


def test_peft_adapters_move_and_come_back_from_both_files(tmp_path: Any) -> None:
    model = lora()
    trainer = train(model)
    rows = ARCHITECTURES["GPT-2"].batch(5)
    answers = model.eval()(rows[0], attention_mask=rows[1]).logits
    trainer.save(tmp_path / "adapters.safetensors", trained_only=True)
    trainer.save(tmp_path / "whole.safetensors")
    model.save_pretrained(tmp_path / "peft")
    fresh = lora()
    assert not torch.equal(fresh.eval()(rows[0], attention_mask=rows[1]).logits, answers)
    guarantee = PrivateTrainer(fresh, CONFIG).load(tmp_path / "adapters.safetensors")
    assert guarantee.epsilon == trainer.guarantee().epsilon
    assert torch.equal(fresh.eval()(rows[0], attention_mask=rows[1]).logits, answers)
    theirs = peft.PeftModel.from_pretrained(built("GPT-2"), tmp_path / "peft").eval()
    assert torch.equal(theirs(rows[0], attention_mask=rows[1]).logits, answers)
    whole = lora()
    PrivateTrainer(whole, CONFIG).load(tmp_path / "whole.safetensors")
    assert torch.equal(whole.eval()(rows[0], attention_mask=rows[1]).logits, answers)
    small, large = (tmp_path / name for name in ("adapters.safetensors", "whole.safetensors"))
    weights = sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert small.stat().st_size < 4 * weights + 8192 < large.stat().st_size


def test_adapters_are_not_put_on_another_base(tmp_path: Any) -> None:
    trainer, path = train(lora()), tmp_path / "adapters.safetensors"
    trainer.save(path, trained_only=True)
    other = lora()
    with torch.no_grad():
        next(one for one in other.parameters() if not one.requires_grad).view(-1)[0] += 1e-3
    kept = {name: one.clone() for name, one in other.state_dict().items()}
    with pytest.raises(InvalidParameter, match="another frozen model"):
        PrivateTrainer(other, CONFIG).load(path)
    assert all(torch.equal(one, kept[name]) for name, one in other.state_dict().items())
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(QuietsumError, match="not what was saved"):
        PrivateTrainer(lora(), CONFIG).load(path)


def test_an_adapter_that_the_loss_does_not_reach_is_refused_before_any_charge() -> None:
    model = lora(modules_to_save=["ln_f"])
    for name, module in model.named_modules():
        if name.endswith("h.0.attn.c_attn"):
            module.enable_adapters(False)  # one of two layers is switched off
    for name, one in model.named_parameters():
        one.requires_grad_("lora_" in name or "modules_to_save" in name)
    with pytest.raises(InvalidParameter, match=r"does not depend on .*lora_"):
        train(model)
    merged = lora(modules_to_save=["ln_f"])
    merged.merge_adapter()
    with pytest.raises(InvalidParameter, match=r"does not depend on .*lora_"):
        train(merged)
    unmerged = lora()
    unmerged.merge_adapter()
    unmerged.unmerge_adapter()
    train(unmerged)


def test_what_peft_would_leave_out_of_its_file_is_refused_before_any_charge() -> None:
    model = lora()
    model.base_model.model.transformer.ln_f.weight.requires_grad_(True)
    with pytest.raises(InvalidParameter, match=r"save_pretrained would leave out .*ln_f"):
        train(model)
    train(lora(modules_to_save=["ln_f"]))


def test_adapters_that_come_after_the_trainer_are_refused() -> None:
    model, rows = built("GPT-2"), tokenised("GPT-2", 24)
    trainer = PrivateTrainer(model, CONFIG, selfcheck=False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["c_attn"]), model)
    with pytest.raises(InvalidParameter, match="has other trained parameters than when"):
        trainer.train(rows)


def test_a_step_that_moves_a_copy_is_found_after_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what silently dropped adapters look like, an optimizer that holds other tensors than the model."""
    from quietsum.learning import optimizers

    model, rows = lora(), tokenised("GPT-2", 24)
    trainer = PrivateTrainer(model, CONFIG, selfcheck=False)
    bound = optimizers.Adam.bind
    monkeypatch.setattr(
        optimizers.Adam, "bind", lambda self, parameters: bound(self, [nn.Parameter(p.clone()) for p in parameters])
    )
    with pytest.raises(QuietsumError, match=r"has not moved .*lora_"):
        trainer.train(rows)
    assert trainer._spending is not None and trainer._spending.charged == 3  # one chunk, and no more


def test_a_warm_up_that_begins_at_zero_is_no_fault() -> None:
    model, rows = lora(), tokenised("GPT-2", 24)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01)
    model, private, loader = make_private(model, optimizer, rows, config=CONFIG, selfcheck=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(private, lambda step: step / 3)
    for _ in loader:
        private.step()
        schedule.step()
    assert schedule.get_last_lr()[0] > 0


def test_what_noise_alone_moves_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    trainer = PrivateTrainer(TwoHeads(), CONFIG, selfcheck=False)
    with caplog.at_level(logging.WARNING):
        trainer.train((torch.randn(24, 2), torch.arange(24) % 2))
    assert "noise alone will move idle.weight, idle.bias" in caplog.text


def test_a_rule_of_ones_own_may_gather_steps_but_not_leave_a_part_behind() -> None:
    class Every:
        """Moves what it holds at every second step; of ``parts`` the first ones alone."""

        def __init__(self, parts: int | None) -> None:
            self.parts, self.steps = parts, 0

        def bind(self, parameters: Any) -> Any:
            self.held = list(parameters)[: self.parts]
            return self

        def step(self, gradient: Any, *, learning_rate: float, noise_variance: float) -> None:
            self.steps += 1
            if self.steps % 2 == 0:
                with torch.no_grad():
                    for one, slope in zip(self.held, gradient, strict=False):
                        one.sub_(slope)

        def state(self) -> dict[str, Any]:
            return {}

        def restore(self, state: Any) -> None:
            raise NotImplementedError

    rows: Any = tokenised("GPT-2", 24)
    whole: Any = Every(None)
    assert PrivateTrainer(lora(), CONFIG, selfcheck=False).train(rows, optimizer=whole).stopped == "finished"
    part: Any = Every(2)
    with pytest.raises(QuietsumError, match=r"has not moved .*lora_"):
        PrivateTrainer(lora(), CONFIG, selfcheck=False).train(rows, optimizer=part)
