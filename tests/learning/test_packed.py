"""Rows that are filled up, and rows of several documents: what stands beside a record's own tokens moves nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("peft")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from learning.architectures import adapted, built  # noqa: E402
from learning.test_named_rows import Tokenised  # noqa: E402
from quietsum import PrivacyConfig, PrivateTrainer  # noqa: E402
from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning.clipping import Flat  # noqa: E402
from quietsum.learning.engines.protocol import engine_for, trainable  # noqa: E402
from quietsum.learning.rows.named import read_named  # noqa: E402
from quietsum.learning.rows.people import bound_people  # noqa: E402
from quietsum.learning.step import cross_entropy  # noqa: E402

LENGTH, CLIP = 7, 0.5
CONFIG = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=8)


def texts(count: int = 6) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 40, (place % 4 + 4,), generator=generator).tolist() for place in range(count)]


def row_of(text: list[int], labelled: bool, filled: int | None = None) -> dict[str, Any]:
    rest = 0 if filled is None else LENGTH - len(text)
    row: dict[str, Any] = {
        "input_ids": text + [filled or 0] * rest,
        "attention_mask": [1] * len(text) + [0] * rest,
    }
    return {**row, "labels": text[0] % 3} if labelled else row


def read(model: nn.Module, rows: list[dict[str, Any]], example: Any = None) -> tuple[Any, list[tuple[Tensor, ...]]]:
    """The loss of a record, and records as tensors."""
    named = read_named(Tokenised(rows), None, example, model=model, loss=cross_entropy)
    return named.loss, [named.data[place] for place in range(len(rows))]


def clipped(gradients: Any) -> Tensor:
    flat = torch.cat([part.flatten() for part in gradients])
    return flat * min(1.0, CLIP / float(flat.norm()))


def one_by_one(model: nn.Module, rows: list[dict[str, Any]]) -> Tensor:
    """Another oracle: torch's own gradient of each record in its own length, cut, added up."""
    total: Any = 0
    for row in rows:
        loss, [parts] = read(model, [row])
        value = loss(model, tuple(part[None] for part in parts))[0]
        total = total + clipped(
            torch.autograd.grad(value, trainable(model)[1], allow_unused=True, materialize_grads=True)
        )
    return total


def summed(model: nn.Module, rows: list[dict[str, Any]], example: Any = None) -> Tensor:
    loss, records = read(model, rows, example)
    batch = tuple(torch.stack(parts) for parts in zip(*records, strict=True))
    engine = engine_for("auto", model, loss, Flat(max_norm=CLIP))
    found = engine.clipped_sum(batch)
    assert engine.name == "bookkeeping"
    return torch.cat([part.flatten() for part in found])


def apart(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


def model_of(name: str, adapters: bool = False) -> nn.Module:
    return (adapted(name) if adapters else built(name)).double().eval()


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "RoBERTa"])
def test_tokens_that_fill_a_row_up_move_nothing(name: str, adapters: bool) -> None:
    model, labelled, padding = model_of(name, adapters), name == "RoBERTa", 1
    alone = one_by_one(model, [row_of(text, labelled) for text in texts()])
    filled = [row_of(text, labelled, padding) for text in texts()]
    assert apart(summed(model, filled), alone) < 1e-10
    example = row_of([5] * LENGTH, labelled)
    assert apart(summed(model, [row_of(text, labelled) for text in texts()], example), alone) < 1e-10  # filled here
    if not labelled:  # positions of RoBERTa count from its padding
        assert apart(summed(model, [row_of(text, labelled, 17) for text in texts()]), alone) < 1e-10
    open_rows = [{**row, "attention_mask": [1] * LENGTH} for row in filled]
    assert apart(summed(model, open_rows), alone) > 1e-3  # the control: tokens that are taken for text


def packed(documents: list[list[int]], length: int) -> dict[str, Any]:
    """The documents of one person in one row; padding is a document of one token each."""
    tokens, places = [], []
    for document in documents:
        tokens += document
        places += list(range(len(document)))
    rest = length - len(tokens)
    return {"input_ids": tokens + [1] * rest, "position_ids": places + [0] * rest}


def by_document(model: nn.Module, people: list[list[list[int]]]) -> Tensor:
    """Another oracle: each document through the model by itself, one gradient a person, cut, added up."""
    total: Any = 0
    for documents in people:
        lost, counted = torch.zeros((), dtype=torch.float64), 0
        for document in documents:
            tokens = torch.tensor([document])
            called: Any = model
            scores = called(input_ids=tokens).logits[0, :-1]
            lost = lost + nn.functional.cross_entropy(scores, tokens[0, 1:], reduction="sum")
            counted += len(document) - 1
        total = total + clipped(
            torch.autograd.grad(lost / counted, trainable(model)[1], allow_unused=True, materialize_grads=True)
        )
    return total


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_the_documents_of_one_person_in_one_row_do_not_read_each_other(name: str, adapters: bool) -> None:
    model = model_of(name, adapters)
    people = [[[5, 6, 7], [9, 8, 11, 12]], [[30, 4, 5, 21]], [[7, 7], [8, 3, 9], [15, 16]], [[9, 10, 11], [4, 5]]]
    rows = [packed(documents, 9) for documents in people]
    whole = by_document(model, people)
    assert apart(summed(model, rows), whole) < 1e-10
    flowing = [{**row, "position_ids": list(range(9))} for row in rows]
    assert apart(summed(model, flowing), whole) > 1e-3  # the control: one long document
    each = by_document(model, [[document] for documents in people for document in documents])
    assert apart(summed(model, rows), each) > 1e-3  # the control: a clip for each document protects no person


def test_a_trainer_takes_rows_of_one_persons_documents() -> None:
    rows = [packed([[5 + place % 9, 6, 7], [9, 8, 11]], 9) for place in range(24)]
    history = PrivateTrainer(adapted("Llama"), CONFIG).train(Tokenised(rows))
    assert history.stopped == "finished"


def test_rows_that_join_several_records_are_refused() -> None:
    model, rows = adapted("Llama"), [row_of([5, 6, 7, 8, 9, 10, 11], False) for _ in range(24)]
    joined = [{**row, "seq_lengths": [3, 4]} for row in rows]
    with pytest.raises(InvalidParameter, match="fills a row with documents of several records"):
        PrivateTrainer(model, CONFIG).train(Tokenised(joined))
    flattening = transformers.DataCollatorWithFlattening()
    loader: Any = DataLoader(Tokenised(rows), batch_size=8, collate_fn=flattening)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="joins the records of a batch"):
        PrivateTrainer(model, CONFIG).train(loader)
    assert PrivateTrainer(model, CONFIG, selfcheck=False).train(Tokenised(rows)).stopped == "finished"  # the control


def test_a_row_that_belongs_to_several_people_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="several people for one record"):
        bound_people([["ada", "bob"], ["cy"]], most=1)
    with pytest.raises(InvalidParameter, match="several people for one record"):
        bound_people([("ada", "bob"), ("cy", "dan")], most=1)
    assert bound_people(["ada", "cy"], most=1).tolist() == [0, 1]
