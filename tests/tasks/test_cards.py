"""Card payments with card numbers: the file, the split by card, and features that no other row touches."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.datafiles import data_folder, sha256_of
from quietsum.tasks.gallery import cards
from quietsum.tasks.gallery.cards import FEATURES, PROVIDERS, CardsTask, card_features
from quietsum.tasks.gallery.files import cards as reader
from quietsum.tasks.gallery.files.cards import KnownText, card_parts, check_cards, read_card_payments
from tasks.one_row import assert_row_local

HERE = data_folder("evalml_fraud")
HEADER = ",".join(reader._HEADER)
needs_data = pytest.mark.skipif(not os.environ.get("QUIETSUM_DATA"), reason="set QUIETSUM_DATA to read the real file")


def lines(rows: int = 300) -> list[str]:
    rng = np.random.default_rng(4)
    found = []
    for number in range(rows):
        amount = int(rng.integers(3, 100_000))
        fraud = amount > 90_000 or rng.random() < 0.1
        found.append(
            f"{number},{rng.integers(0, rows // 3)},{rng.integers(0, 900)},2019-03-{number % 28 + 1:02d} "
            f"{rng.integers(0, 24):02d}:10:05,{amount},CUC,{rng.random() < 0.5},{fraud},08/24,"
            f'{PROVIDERS[number % 10]},38.5,-89.9,"Here, or there",{("US", "IN", "", "FR")[number % 4]}'
        )
    return found


def write(folder: Path, rows: list[str], *, packed: bool = True) -> KnownText:
    content = ("\n".join([HEADER, *rows]) + "\n").encode()
    if packed:
        (folder / "fraud_transactions.csv.gz").write_bytes(gzip.compress(content))
    else:
        (folder / "fraud_transactions.csv").write_bytes(content)
    return KnownText(rows=len(rows), sha256=sha256_of(content))


def edited(row: int, column: int, value: str) -> list[str]:
    rows = lines()
    cells = rows[row].split(",", 12)
    cells[column] = value
    rows[row] = ",".join(cells)
    return rows


# ------------------------------------------------------------------------------------------------ the file


def test_the_packed_and_the_plain_file_are_the_same(tmp_path: Path) -> None:
    found = []
    for packed in (True, False):
        folder = tmp_path / str(packed)
        folder.mkdir()
        found.append(read_card_payments(folder, write(folder, lines(), packed=packed)))
    assert len(found[0]) == 300 and found[0].countries[:4] == ("US", "IN", "", "FR")
    for field in dataclasses.fields(found[0]):
        assert np.array_equal(getattr(found[0], field.name), getattr(found[1], field.name))
    assert repr(found[0]) == "CardPayments(300 rows)"


def test_a_missing_file_is_an_error_that_says_where_it_is_found(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"evalml==0\.84\.0.*QUIETSUM_DATA") as told:
        CardsTask(folder=tmp_path).records()
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize("cut", [0, 5, 200, -9, -1])
def test_truncated_files_are_refused(tmp_path: Path, cut: int) -> None:
    for packed, name in ((True, "fraud_transactions.csv.gz"), (False, "fraud_transactions.csv")):
        folder = tmp_path / name[-2:]
        folder.mkdir()
        known = write(folder, lines(), packed=packed)
        read_card_payments(folder, known)  # the control
        (folder / name).write_bytes((folder / name).read_bytes()[:cut])
        with pytest.raises(DataMissing, match="fetch it again"):
            read_card_payments(folder, known)


def test_one_altered_byte_is_refused(tmp_path: Path) -> None:
    known = write(tmp_path, lines())
    write(tmp_path, edited(9, 4, "7"))
    with pytest.raises(DataMissing, match="SHA-256"):
        read_card_payments(tmp_path, known)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (7, "Maybe", "row 9: customer_present and fraud are True or False"), (6, "", "True or False"),
        (4, "nan", "outside its range"), (4, "-3", "outside its range"), (4, "inf", "outside its range"),
        (4, "much", "no number"), (1, "-1", "outside its range"), (1, "x", "no number"),
        (3, "2019-01-01 25:00:00", "outside its range"), (3, "yesterday", "no number"), (0, "1,1", "15 columns"),
    ],
)  # fmt: skip
def test_bad_cells_are_named_by_row_and_never_shown(tmp_path: Path, column: int, value: str, said: str) -> None:
    known = write(tmp_path, edited(9, column, value))
    with pytest.raises(DataMissing, match=said) as told:
        read_card_payments(tmp_path, known)
    assert "row 9" in str(told.value) and "much" not in str(told.value) and "yesterday" not in str(told.value)


def test_other_columns_too_few_rows_and_an_empty_class_are_refused(tmp_path: Path) -> None:
    known = write(tmp_path, lines())
    with pytest.raises(DataMissing, match="300 rows where the published file has 301"):
        read_card_payments(tmp_path, KnownText(rows=301, sha256=known.sha256))
    known = write(tmp_path, [row.replace(",True,08", ",False,08") for row in lines()])
    with pytest.raises(DataMissing, match="one class only"):
        read_card_payments(tmp_path, known)
    content = b"a,b\n1,2\n"
    (tmp_path / "fraud_transactions.csv.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataMissing, match="does not begin with the columns"):
        read_card_payments(tmp_path, KnownText(rows=1, sha256=sha256_of(content)))


# ------------------------------------------------------------------------------------------------ the task


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (cards, reader):
        monkeypatch.setattr(module, "KNOWN", write(tmp_path, lines()))
    return tmp_path


def test_a_card_lies_wholly_in_one_part(small: Path) -> None:
    payments = read_card_payments(small, reader.KNOWN)
    part = card_parts(payments)
    for card in np.unique(payments.cards):
        assert len(np.unique(part[payments.cards == card])) == 1
    assert sorted(np.unique(part)) == [0, 1, 2]


@pytest.mark.parametrize("network", ["linear", "mlp"])
@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_both_networks_read_records_with_their_cards(small: Path, network: str, evaluate_on: str) -> None:
    task = CardsTask(network=network, evaluate_on=evaluate_on, folder=small)
    rows, labels = task.records()
    payments = read_card_payments(small, reader.KNOWN)
    held = {"test": [2], "validation": [1, 2]}[evaluate_on]
    trains = ~np.isin(card_parts(payments), held)
    assert rows.shape == (trains.sum(), FEATURES) and len(labels) == len(rows) == len(task.people())
    np.testing.assert_array_equal(task.people(), payments.cards[trains])
    for made, real in zip(task.example(), (rows, labels), strict=True):
        assert (made.shape[1:], made.dtype) == (real.shape[1:], real.dtype)
    model = task.model()
    assert task.loss(model, (rows, labels)).shape == labels.shape
    scored = task.evaluate(model)
    assert list(scored.values) == ["auc", "auprc"] and evaluate_on in scored.on
    assert task.person == "card"


def test_a_card_on_both_sides_of_the_split_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = CardsTask(folder=small)
    assert len(task.people()) == len(task.records()[0])  # the control
    monkeypatch.setattr(cards, "card_parts", lambda payments: np.arange(len(payments)) % 3)
    with pytest.raises(InvalidParameter, match=r"one card in two sites pays twice"):
        task.people()


def test_features_are_one_bin_one_store_one_country_one_provider(small: Path) -> None:
    payments = read_card_payments(small, reader.KNOWN)
    found = card_features(payments)
    ends = np.cumsum([0, 20, 512, 32, 10])
    for start, end in itertools.pairwise(ends):
        np.testing.assert_array_equal((found[:, start:end] > 0).sum(axis=1), 1)
    np.testing.assert_array_equal(found[:, :20].argmax(axis=1), np.minimum(payments.amounts // 5000, 19))
    names = [PROVIDERS[place] for place in found[:, ends[3] : ends[4]].argmax(axis=1)]
    assert names == list(payments.providers)
    strange = dataclasses.replace(payments, providers=("a new bank", *payments.providers[1:]))
    assert not card_features(strange)[0, ends[3] : ends[4]].any()  # no error, which would tell about that row


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_nothing_private_steers_the_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for module in (cards, reader):
        monkeypatch.setattr(module, "KNOWN", write(tmp_path / "a", lines()))
    before = CardsTask(network=network, folder=tmp_path / "a")
    before.records()
    trains = np.flatnonzero(card_parts(read_card_payments(tmp_path / "a", reader.KNOWN)) != 2)
    rows = lines()
    cells = rows[trains[3]].split(",", 12)
    cells[2], cells[4], cells[9] = "899", "1000000000", "a new bank"
    cells[7] = "False" if cells[7] == "True" else "True"
    rows[trains[3]] = ",".join(cells[:12]) + ",Nowhere,QQ"
    monkeypatch.setattr(cards, "KNOWN", write(tmp_path / "b", rows))
    assert_row_local(before, CardsTask(network=network, folder=tmp_path / "b"), 3, modules=[cards, reader])


@pytest.mark.parametrize(
    ("options", "said"), [({"network": "forest"}, "linear"), ({"evaluate_on": "x"}, "validation"), ({"split": 1}, "0")]
)
def test_options_must_be_known(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        CardsTask(**options)  # type: ignore[arg-type]


def test_delta_is_at_most_a_tenth_of_one_in_n() -> None:
    for where in cards.SIZES:
        task = CardsTask(evaluate_on=where, folder="nowhere")
        assert task.settings.training["delta"] <= 1 / (10 * task.size)


# ------------------------------------------------------------------------------------------ the published file


@needs_data
def test_the_published_file_has_the_known_sum_and_sizes() -> None:
    assert check_cards(HERE) == "99,992 payments of 33,333 cards, 15,179 frauds"
    part = card_parts(cards._payments(HERE))
    assert {"test": (part != 2).sum(), "validation": (part == 0).sum()} == cards.SIZES


@needs_data
def test_cards_have_one_to_ten_payments_and_those_of_the_test_never_train() -> None:
    task = CardsTask()
    people = task.people()
    assert len(people) == task.size and np.bincount(people).max() == 10
    payments = cards._payments(HERE)
    assert not np.isin(payments.cards[card_parts(payments) == 2], people).any()


@needs_data
def test_the_model_learns_on_the_published_file() -> None:
    """Ten plain gradient steps without privacy beat a coin by far, so the features carry the answer."""
    task = CardsTask(evaluate_on="validation")
    model = task.model()
    rows, labels = (part[::10] for part in task.records())
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    for _ in range(10):
        optimizer.zero_grad()
        task.loss(model, (rows, labels)).mean().backward()
        optimizer.step()
    assert task.evaluate(model).values["auc"] > 0.75
