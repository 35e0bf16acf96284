"""The text task: documents as records, a public vocabulary, files of one's own, and adapters beside a frozen base."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quietsum.contracts import TaskContract  # noqa: E402
from quietsum.errors import CorruptState, DataMissing, InvalidParameter  # noqa: E402
from quietsum.learning import PrivacyConfig, PrivateTrainer, hash_frozen  # noqa: E402
from quietsum.learning.clipping import Flat  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402
from quietsum.plan import FederationPlan, Plan, TaskPlan  # noqa: E402
from quietsum.tasks import FederatedTorch, task_of, trainable_task  # noqa: E402
from quietsum.tasks.gallery.byte_transformer import MARK, encode_text  # noqa: E402
from quietsum.tasks.gallery.files.text import KINDS, find_documents, read_library  # noqa: E402
from quietsum.tasks.gallery.text import TextTask, next_byte_loss  # noqa: E402

TINY: dict[str, Any] = {"length": 8}


class TestText(TaskContract):
    """The next byte, dealt out by modules."""

    tolerance = 1e-5

    def make(self) -> Any:
        return FederatedTorch(TextTask(**TINY), parties=20)


class TestClasses(TaskContract):
    """Classes, with adapters, in made clients."""

    tolerance = 1e-5

    def make(self) -> Any:
        return FederatedTorch(TextTask(predict="class", adapters=2, windows=2, **TINY), split="iid", parties=40)


# ------------------------------------------------------------------------------------------------------- records


def test_texts_are_found_in_source_and_nothing_is_run() -> None:
    quotes, words = '"' * 3, "What this is for, in enough words. " * 2
    source = (
        f"{quotes}{words}A{quotes}\nraise SystemExit\nclass B:\n    {quotes}{words}B\n\n    more{quotes}\n"
        f"    def c(self,\n          x):\n        r{quotes}{words}C{quotes}\n        y = {quotes}{words}D{quotes}\n"
        f"    def e(self):\n        {quotes}Short.{quotes}\n"
    )
    found = list(find_documents(source, "there"))
    assert [(KINDS[one.kind], one.text[-1], one.site) for one in found] == [
        ("module", "A", "there"), ("class", "e", "there"), ("function", "C", "there"),
    ]  # fmt: skip
    assert "\n    " not in found[1].text and repr(found[1]) == "Document()"


def test_a_document_of_any_length_is_one_record_of_one_public_shape() -> None:
    task = TextTask(length=16, windows=3)
    (tokens,) = task.records()
    assert tokens.shape == (task.size, 49) and bool((tokens[:, 0] == MARK).all())
    assert max(len(one.text.encode()) for one in read_library()) > 5_000
    assert encode_text("x" * 5_000, 48)[1:].tolist() == [ord("x")] * 48
    assert encode_text("", 4).tolist() == [MARK] * 5


def test_parts_follow_from_the_text_alone_and_share_no_text() -> None:
    task, chosen = TextTask(**TINY), TextTask(evaluate_on="validation", **TINY)
    trains, scored = {one.text for one in task._documents}, {one.text for one in task._read_scored()}
    assert not trains & scored and len(scored) > 300
    assert not {one.text for one in chosen._documents} & {one.text for one in chosen._read_scored()}
    assert not {one.text for one in chosen._documents} & scored and chosen.size < task.size
    assert {one.text for one in read_library()} == trains | scored


@pytest.mark.parametrize("options", [{}, {"windows": 2}, {"adapters": 2}, {"predict": "class"}])
def test_the_clipped_sum_is_that_of_a_loop(options: dict[str, Any]) -> None:
    task = TextTask(**TINY, **options)
    model, batch = task.model().double(), tuple(part[:6] for part in task.records())
    for name, one in model.named_parameters():
        if name.endswith("up.weight"):
            torch.nn.init.normal_(one, std=0.3)
    clip = Flat(max_norm=0.1)
    engine = engine_for("auto", model, task.loss, clip)
    sums, naive = (made.clipped_sum(batch) for made in (engine, engine_for("naive", model, task.loss, clip)))
    assert engine.name == "bookkeeping"
    for total, true in zip(sums, naive, strict=True):
        torch.testing.assert_close(total, true, rtol=1e-10, atol=1e-12)


def test_padding_and_numbers_that_are_no_bytes_add_nothing() -> None:
    task = TextTask(length=16)
    model = task.model().double()
    short = encode_text("A short one", 16)[None]
    alone = next_byte_loss(model, (short,))
    kept = int((short[0, 1:] != MARK).sum())
    scores = model(short)[0, 0].log_softmax(-1)
    by_hand = -sum(float(scores[place, int(short[0, place + 1])].detach()) for place in range(kept)) / kept
    assert float(alone.detach()) == pytest.approx(by_hand)
    assert float(next_byte_loss(model, (encode_text("", 16)[None],)).detach()) == 0
    odd = torch.full((1, 17), 30_000, dtype=torch.int16)
    assert not next_byte_loss(model, (odd,)).any() and not next_byte_loss(model, (-odd,)).any()
    both = next_byte_loss(model, (torch.cat([odd, short]),))
    assert float(both[1].detach()) == pytest.approx(float(alone.detach()))


def test_private_training_learns_bytes() -> None:
    task = TextTask(length=16)
    torch.manual_seed(0)
    model = task.model()
    before = task.evaluate(model)
    trainer = PrivateTrainer(
        model, PrivacyConfig(epsilon=8.0, epochs=1, batch_size=400), loss=task.loss, selfcheck=False
    )
    trainer.train(task.records())
    after = task.evaluate(model)
    assert after.values["bits_per_byte"] < 6.5 < 7.5 < before.values["bits_per_byte"]
    assert after.chance["bits_per_byte"] == 8 and "published documents (test)" in after.on
    assert trainer.guarantee().epsilon <= 8


# ------------------------------------------------------------------------------------------------ files of one's own


def write(folder: Path) -> tuple[Path, Path]:
    own, scored = folder / "own", folder / "scored"
    (own / "ada").mkdir(parents=True)
    scored.mkdir()
    (own / "ada" / "first.txt").write_text("A letter of Ada.", encoding="utf-8")
    (own / "ada" / "second.txt").write_text("Another letter of hers.", encoding="utf-8")
    (own / "loose.txt").write_bytes(b"not \xff utf-8")
    lines = [{"text": "from a list", "author": "bob", "site": "north", "label": 1}, {"text": 3}, [], "x"]
    (own / "more.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n", encoding="utf-8")
    (scored / "public.txt").write_text("What everybody may read.", encoding="utf-8")
    return own, scored


def test_a_folder_of_ones_own_is_protected_and_its_size_is_declared(tmp_path: Path) -> None:
    own, scored = write(tmp_path)
    task = TextTask(folder=own, score_folder=scored, size=100, **TINY)
    assert task.size == 100 and task.public == "" and len(task.records()[0]) == 8
    assert task.people().tolist()[:2] == ["ada", "ada"] and task.people().tolist()[3] == "bob"
    assert len(set(task.people().tolist())) == 7  # one without an author is a person of its own
    assert "unprotected" in task.evaluate(task.model()).on
    labelled = TextTask(folder=own, score_folder=scored, size=100, predict="class", labels=2, **TINY)
    assert labelled.records()[1].tolist() == [-1, -1, -1, 1, -1, -1, -1, -1]
    wrong: dict[str, dict[str, Any]] = {
        "size": {"score_folder": scored},
        "score_folder": {"size": 100},
        "another one": {"size": 100, "score_folder": own},
        "labels": {"size": 100, "score_folder": scored, "predict": "class"},
    }
    for remedy, options in wrong.items():
        with pytest.raises(InvalidParameter, match=remedy):
            TextTask(folder=own, **options, **TINY)
    with pytest.raises(InvalidParameter, match="documents of one's own"):
        TextTask(size=100, **TINY)
    missing = TextTask(folder=tmp_path / "none", score_folder=scored, size=5, **TINY)
    for read in (lambda: missing.look_for_data("here"), missing.records):
        with pytest.raises(DataMissing, match="is not there; name the folder"):
            read()


def test_sites_and_authors_of_a_folder(tmp_path: Path) -> None:
    own, scored = write(tmp_path)
    (own / "more.jsonl").unlink()
    for name in ("ada/first.txt", "ada/second.txt", "loose.txt"):
        (own / name).unlink()
    rows = [{"text": f"{k}", "author": f"a{k // 2}", "site": "north" if k < 4 else "south"} for k in range(8)]
    (own / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    sizes = {"north": 5, "south": 6}
    made = FederatedTorch(TextTask(folder=own, score_folder=scored, size=12, site_sizes=sizes, **TINY))
    assert [(one.name, one.size) for one in made.parties()] == [("north", 5), ("south", 6)]
    assert made.person == "author" and len(made.records_of("north")[0]) == 4


# ------------------------------------------------------------------------------------------- adapters and their base


def plan(base: str = "", **options: Any) -> Plan:
    federation = FederationPlan(rounds=1, split="natural", parties=20)
    return Plan(task=TaskPlan(name="text", options={**TINY, **options}, base=base), federation=federation)


def test_adapters_alone_travel_and_every_party_checks_the_base() -> None:
    made = FederatedTorch(TextTask(adapters=2, **TINY), parties=20)
    trained = [one.numel() for one in made.task.model().parameters() if one.requires_grad]
    assert made.dimension == sum(trained) < sum(one.numel() for one in made.task.model().parameters()) / 10
    assert made.base == hash_frozen(made.module(made.initial())) != ""
    with pytest.raises(InvalidParameter, match=f'base = "{made.base}"'):
        task_of(plan(adapters=2))
    assert task_of(plan(made.base, adapters=2)).dimension == made.dimension
    with pytest.raises(InvalidParameter, match="others here"):
        task_of(plan("0" * 64, adapters=2))
    with pytest.raises(InvalidParameter, match="all of it is trained"):
        task_of(plan(made.base))
    assert task_of(plan()).base == ""
    with pytest.raises(InvalidParameter, match="SHA-256"):
        plan("12ab")
    assert plan().digest == dataclasses.replace(plan(), task=TaskPlan(name="text", options=TINY)).digest
    assert "base" not in plan().to_dict()["task"]


def test_a_base_from_a_file_is_loaded_and_another_network_is_refused(tmp_path: Path) -> None:
    whole = TextTask(**TINY)
    torch.manual_seed(5)
    model = whole.model()
    config = PrivacyConfig(epsilon=8.0, epochs=1, batch_size=100)
    trainer = PrivateTrainer(model, config, loss=whole.loss, selfcheck=False)
    trainer.train(tuple(part[:1000] for part in whole.records()))
    trainer.save(tmp_path / "base.safetensors")
    made = FederatedTorch(TextTask(adapters=2, base=tmp_path / "base.safetensors", **TINY), parties=20)
    other = FederatedTorch(TextTask(adapters=2, **TINY), parties=20)
    assert made.base != other.base
    scores = [task.evaluate(task.initial()).values["bits_per_byte"] for task in (made, other)]
    assert scores[0] == pytest.approx(whole.evaluate(model).values["bits_per_byte"], abs=1e-6)
    assert scores[0] != pytest.approx(scores[1], abs=1e-6)  # the control: another base scores otherwise
    update = np.random.default_rng(0).normal(size=made.dimension) * 0.05
    restored = made.module(made.initial() + update)
    assert hash_frozen(restored) == made.base
    with pytest.raises(CorruptState, match="no weights of this network"):
        TextTask(network="medium", base=tmp_path / "base.safetensors", **TINY).model()
    with pytest.raises(DataMissing, match="base model"):
        TextTask(base=tmp_path / "none.safetensors", **TINY).model()


def test_the_memory_of_a_party_counts_weights_and_records() -> None:
    footprints = {}
    for name, options in {"short": {}, "long": {"length": 32}, "adapted": {"adapters": 2}}.items():
        found = FederatedTorch(TextTask(**{**TINY, **options}), parties=20).footprint
        assert found is not None
        footprints[name] = found
    short, long, adapted = footprints.values()
    model = TextTask(**TINY).model()
    assert short.weights == short.trained == sum(one.numel() for one in model.parameters())
    assert short.weight_bytes == 4 * short.weights
    assert 3 * short.record_bytes < long.record_bytes < 6 * short.record_bytes
    assert adapted.trained < short.trained / 10 and adapted.weights > short.weights
    assert short.sum_needed(100.0) - short.sum_needed(0.0) == 160 * short.record_bytes
    assert short.sum_needed(1e9) == short.sum_needed(1e8)  # no forward pass holds more than a block of records


def test_it_is_registered() -> None:
    task = trainable_task("text", TINY)
    assert isinstance(task, TextTask)
    with pytest.raises(InvalidParameter, match="network"):
        trainable_task("text", {"network": "huge"})
    with pytest.raises(InvalidParameter, match="predict"):
        trainable_task("text", {"predict": "tokens"})
