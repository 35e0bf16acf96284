"""What old books cost by today's prices: one correction, signed and checked, and budgets that go by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from torch import nn

from old_books.test_old_books import HERE, call, copy, train
from quietsum import Budget, Gaussian, PoissonSampled, PrivacyUnit, Repeated
from quietsum.errors import BudgetExhausted, LedgerBroken, PlanRefused
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.saving import save_module
from quietsum.learning.trainer import PrivateTrainer
from quietsum.ledger import Charge, Dataset, Kind, Ledger, MemoryStore, Terms
from quietsum.ledger.chain.encoding import canonical, digest
from quietsum.ledger.chain.export import export_ledger, verify_export
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.chain.packing import pack, unpack
from quietsum.ledger.pricing import FIRST, PRICING, Prices
from quietsum.privacy import Group, OneInOneOut
from quietsum.privacy.units import Neighbours
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import Workspace

RECORD, PERSON = PrivacyUnit.RECORD, PrivacyUnit.PERSON
STEP = PoissonSampled(rate=0.5, event=Gaussian(noise_multiplier=3.0))


def entries(place: Path) -> list[str]:
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        return [entry.kind.value for entry in ledger.entries()]


def shown(place: Path, *more: str) -> Any:
    done = call("ledger", "show", "--workspace", place, "--json", *more)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# ------------------------------------------------------------------------------------ reading changes nothing


def test_commands_that_look_show_the_new_figures_and_write_nothing(tmp_path: Path) -> None:
    place = copy(tmp_path)
    before = entries(place)
    values = shown(place)
    assert values["corrected_at"] is None
    told = {(line["run"], line["party"], line["unit"]): line for line in values["corrections"]}
    assert {run for run, _, _ in told} >= {"people-done", "people-stopped", "people-tight", "train-people"}
    assert not {"done", "stopped", "people-zero", "train-done", "train-stopped"} & {run for run, _, _ in told}
    line = told["people-done", "ga", "record"]
    assert line["before"] == pytest.approx(2.0, rel=1e-6) and line["after"] == pytest.approx(3.61016, rel=1e-5)
    text = call("ledger", "show", "--run", "people-done", "--workspace", place).output
    assert "ε ≤ 3.6102 per record" in text and "2.0000 per record was stated, it is 3.6102" in text
    report = json.loads(call("show", "people-done", "--workspace", place, "--json").stdout)
    assert any("was corrected" in note for note in report["notes"])
    assert {one["epsilon"] for one in report["guarantees"] if one["unit"] == "record"} == {line["after"]}
    assert call("ledger", "verify", "--workspace", place).exit_code == 0
    assert entries(place) == before


# ----------------------------------------------------------------------------------------- written once


def test_the_first_charge_writes_one_correction_and_later_ones_none(tmp_path: Path) -> None:
    place = copy(tmp_path)
    assert call("run", "--resume", "stopped", "--workspace", place).exit_code == 0  # a run without any change itself
    train(place, "train-stopped", "line-2", people=False)
    assert call("run", "--resume", "people-zero", "--workspace", place).exit_code == 0
    assert entries(place).count("correction") == 1
    values = shown(place)
    assert entries(place)[values["corrected_at"] - 1] == "correction"
    assert call("ledger", "verify", "--workspace", place, "--every-signature").exit_code == 0
    text = call("ledger", "show", "--workspace", place).output
    assert f"in entry {values['corrected_at']}" in text
    assert call("ledger", "export", tmp_path / "out.jsonl", "--workspace", place).exit_code == 0
    assert call("ledger", "verify", "--export", tmp_path / "out.jsonl").exit_code == 0
    altered = (tmp_path / "out.jsonl").read_text().replace("3.6101557", "3.5101557")
    (tmp_path / "out.jsonl").write_text(altered)
    assert call("ledger", "verify", "--export", tmp_path / "out.jsonl").exit_code == 4


@pytest.mark.parametrize(
    ("run", "limit", "rounds"),
    [
        ("people-tight", "ε = 2 per record", 2),
        ("people-stopped", "ε = 2 per record", 2),
        ("fixed-tight", "ε = 6 per client", 3),
        pytest.param("fixed-stopped", "ε = 6 per client", 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.some(2)
def test_a_run_whose_limit_does_not_hold_by_new_prices_stops_with_3_and_keeps_its_model(
    tmp_path: Path, run: str, limit: str, rounds: int
) -> None:
    place = copy(tmp_path)
    done = call("run", "--resume", run, "--workspace", place)
    assert done.exit_code == 3, done.output
    told = " ".join(done.output.split())
    assert f"may cost {limit}" in told and "earlier prices" in told
    folder = Workspace(path=place).find(run)
    last = checkpoints.latest_checkpoint(folder.checkpoints)
    assert folder.model.is_file() and last is not None and last.round == rounds
    assert entries(place).count("correction") == 1
    assert call("ledger", "verify", "--workspace", place).exit_code == 0
    assert call("run", "--resume", run, "--workspace", place).exit_code == 3  # and says so again


@pytest.mark.slow
def test_a_price_that_came_down_is_corrected_too_and_the_run_goes_to_its_end(tmp_path: Path) -> None:
    place = copy(tmp_path)
    assert call("run", "--resume", "fixed-zero-out", "--workspace", place).exit_code == 0
    (line, *_) = [one for one in shown(place)["corrections"] if one["run"] == "fixed-zero-out"]
    assert line["after"] < line["before"]
    assert call("ledger", "verify", "--workspace", place).exit_code == 0


def test_a_training_whose_limit_does_not_hold_stops_and_keeps_its_model(tmp_path: Path) -> None:
    place = copy(tmp_path)
    with pytest.raises(BudgetExhausted, match=r"(?s)earlier prices.*model\.safetensors"):
        train(place, "train-people", "line-3", people=True)
    assert (place / "training" / "train-people" / "model.safetensors").is_file()
    assert call("ledger", "verify", "--workspace", place).exit_code == 0


def test_a_model_of_before_comes_with_todays_price(tmp_path: Path) -> None:
    place = copy(tmp_path) / "training"
    for run, people in (("train-people", True), ("train-done", False)):
        trainer = PrivateTrainer(nn.Linear(1, 1), PrivacyConfig(epsilon=6.0))
        about = json.loads(_header(place / run / "checkpoint.safetensors"))
        path = tmp_path / f"{run}.safetensors"
        told = {name: about[name] for name in about if name not in ("version", "kind", "digest", "clip")}
        save_module(path, trainer.model, told)
        found, stated = trainer.load(path), about["guarantee"]["epsilon"]
        if people:
            assert stated == pytest.approx(6.0, rel=1e-5) and found.epsilon > 1.3 * stated
            assert "corrected: ε = 6 was stated" in str(found) and "one in, one out" in str(found)
        else:
            assert found.epsilon == stated and "corrected" not in str(found)
        save_module(path, trainer.model, {**told, "pricing": PRICING})
        assert trainer.load(path).epsilon == stated  # what says that it is priced by today's rules is taken as it is


def _header(path: Path) -> str:
    with safe_open(path, framework="pt") as file:
        return str(file.metadata()["quietsum"])


def test_a_lifetime_goes_by_the_new_figure(tmp_path: Path) -> None:
    place = copy(tmp_path)  # train-people: 4.22 of 6 was stated, 6.05 is true
    values = {book["dataset"]: book for book in shown(place)["books"]}
    assert values["line-3"]["guarantee"]["epsilon"] == pytest.approx(6.04747, rel=1e-5)
    assert "more than that: ε 6.05" in call("ledger", "show", "--workspace", place).output
    step = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=50.0))
    charge = Charge(party="here", dataset="line-3", unit=RECORD, event=step)
    with Ledger.open(place / "ledger.db") as ledger, pytest.raises(BudgetExhausted, match="corrected prices"):
        ledger.open_run(
            "next", plan={}, terms=Terms(limits=(Budget(epsilon=1.0, delta=1e-3),)), planned=[charge],
            datasets=[Dataset(party="here", dataset="line-3", size=60)],
        )  # fmt: skip


# ------------------------------------------------------------------------------------------- forgeries


def forge(place: Path, kind: Kind, change: Any) -> None:
    """Append an entry with the ledger's own key, as somebody with the files can."""
    with Ledger.open(place / "ledger.db") as ledger:
        lines = [line.to_dict() for line in ledger.corrections()[0]]
        body = change({"pricing": PRICING, "corrections": lines, "operator_only": False})
        with ledger._journal.writing("forge") as add:
            add(kind, body)


def lowered(body: dict[str, Any]) -> dict[str, Any]:
    body["corrections"][0]["after"] *= 0.9
    return body


def prettier(body: dict[str, Any]) -> dict[str, Any]:
    body["corrections"][0]["before"] *= 1.5
    return body


def shorter(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "corrections": body["corrections"][1:]}


def other(body: dict[str, Any]) -> dict[str, Any]:
    body["corrections"][0]["run"] = "done"
    return body


def empty(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "corrections": []}


@pytest.mark.parametrize("change", [lowered, prettier, shorter, other, empty])
def test_a_forged_or_missing_figure_is_found(tmp_path: Path, change: Any) -> None:
    place = copy(tmp_path)
    forge(place, Kind.CORRECTION, change)
    assert call("ledger", "verify", "--workspace", place).exit_code == 4


def test_the_honest_correction_passes_where_the_forged_ones_do_not(tmp_path: Path) -> None:
    place = copy(tmp_path)
    forge(place, Kind.CORRECTION, dict)
    assert call("ledger", "verify", "--workspace", place).exit_code == 0


def test_a_second_correction_and_one_that_nothing_needs_are_found(tmp_path: Path) -> None:
    place = copy(tmp_path)
    forge(place, Kind.CORRECTION, dict)
    with pytest.raises(LedgerBroken, match="second time"):
        forge(place, Kind.CORRECTION, dict)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    Ledger.open(fresh / "ledger.db", create=True).close()
    forge(fresh, Kind.CORRECTION, dict)
    assert call("ledger", "verify", "--workspace", fresh).exit_code == 4


def run_body(**more: Any) -> dict[str, Any]:
    charge = Charge(party="new", dataset="data", unit=RECORD, event=STEP)
    return {
        "run": "new", "plan": {}, "plan_hash": digest(canonical({})),
        "terms": Terms(limits=(Budget(epsilon=9.0, delta=1e-3),)).to_dict(),
        "datasets": [Dataset(party="new", dataset="data", size=60, public="made up").to_dict()],
        "planned": [charge.to_dict()], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("corrected", "body", "words"),
    [
        (False, run_body(pricing=2), "no correction stands before it"),
        (True, run_body(), "older rules"),
        (False, run_body(pricing=1), "no version"),
        (False, run_body(pricing=True), "no version"),
        (False, run_body(pricing=PRICING + 1), "use the version of quietsum that wrote it"),
    ],
)
def test_versions_only_grow_and_one_of_the_future_is_refused(
    tmp_path: Path, corrected: bool, body: dict[str, Any], words: str
) -> None:
    place = copy(tmp_path)
    if corrected:
        forge(place, Kind.CORRECTION, dict)
    try:
        forge(place, Kind.RUN, lambda _: body)
    except LedgerBroken as error:  # found by whoever writes it; whoever reads it finds it too
        assert words in str(error)
    done = call("ledger", "verify", "--workspace", place)
    assert done.exit_code == 4 and words in " ".join(done.output.split())


# ----------------------------------------------------------------------------- old books that a test makes


class OldBooks:
    """A ledger with one run of the first version, entry by entry as it was written then."""

    def __init__(self, planned: list[Charge], *, limit: float = 50.0, plan: dict[str, Any] | None = None, **terms: Any):
        self.ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
        limits = tuple(Budget(epsilon=limit, delta=1e-3, unit=unit) for unit in {one.unit for one in planned})
        self.terms, self.planned = Terms(limits=limits, **terms), planned
        parties = {one.party: one.dataset for one in planned}
        for one in planned:
            place = {"party": one.party, "dataset": one.dataset, "unit": one.unit.value}
            self.add(Kind.BUDGET, {**place, "epsilon": limit, "delta": 1e-3, "reason": "made up"})
        plan = plan or {}
        self.add(Kind.RUN, {
            "run": "old", "plan": plan, "plan_hash": digest(canonical(plan)), "terms": self.terms.to_dict(),
            "datasets": [Dataset(party=p, dataset=d, size=60).to_dict() for p, d in parties.items()],
            "planned": [one.to_dict() for one in planned],
        })  # fmt: skip

    def add(self, kind: Kind, body: dict[str, Any]) -> int:
        with self.ledger._journal.writing("old") as add:
            add(kind, body)
        return add.last.sequence

    def round(self, number: int, charges: list[Charge], refuses: str = "") -> None:
        where = {"run": "old", "round": number, "attempt": 1}
        reserve = self.add(Kind.RESERVE, {**where, "charges": [one.to_dict() for one in charges]})
        blind = {"blind": "0" * 32}
        if refuses:
            self.add(Kind.REFUND, {**where, "reserve": reserve, "party": refuses, "reason": "no", **blind})
        run = self.ledger._accounts.runs["old"]
        spent = self.ledger._accounts.spent_lines(run, Prices(version=FIRST))
        hidden = {"operator_only": bool(run.refunds), **(blind if run.refunds else {})}
        self.add(Kind.COMMIT, {**where, "reserve": reserve, "spent": spent, **hidden})


def charges(times: int, parties: tuple[str, ...] = ("a", "b"), step: Any = STEP, people: int = 2) -> list[Charge]:
    def one(party: str, unit: PrivacyUnit, event: Any) -> Charge:
        return Charge(party=party, dataset=f"of-{party}", unit=unit, event=Repeated(times=times, event=event))

    found = []
    for party in parties:
        found += [one(party, RECORD, step)] + ([one(party, PERSON, Group(size=people, event=step))] if people else [])
    return found


def test_a_correction_behind_a_refusal_is_withheld_from_exports_and_both_verify(tmp_path: Path) -> None:
    books = OldBooks(charges(40))
    books.round(1, charges(5))
    books.round(2, charges(5), refuses="b")
    books.ledger.verify()
    books.ledger.commit(books.ledger.reserve("old", 3, 1, charges(5)))  # as it was charged then; read as it is now
    kinds = [entry.kind for entry in books.ledger.entries()]
    assert kinds.count(Kind.CORRECTION) == 1
    correction = next(entry for entry in books.ledger.entries() if entry.kind is Kind.CORRECTION)
    assert correction.body["operator_only"] is True
    found = {(line["party"], line["unit"]): line["after"] for line in correction.body["corrections"]}
    assert set(found) == {("a", "record"), ("b", "record")} and found["a", "record"] > found["b", "record"]
    books.ledger.verify(every_signature=True)
    export_ledger(books.ledger, tmp_path / "out.jsonl")
    assert verify_export(tmp_path / "out.jsonl").withheld == 4  # the refund, two commits and the correction
    assert "after" not in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize("enrolled", [None, ()])
def test_an_old_run_goes_on_with_charges_as_they_are_written_today(enrolled: Any) -> None:
    """In a coordinator's books, and in those that a site keeps of itself."""
    books = OldBooks(charges(40), enrolled=enrolled)
    books.round(1, charges(5))
    today = [one if one.unit is PERSON else wrapped(one) for one in charges(5)]
    books.ledger.commit(books.ledger.reserve("old", 2, 1, today))
    spent = books.ledger.spending_by_party("old")
    whole = Prices().upper(
        (frozenset({(OneInOneOut(event=STEP), 10)}), 0.0, True), "exact", Neighbours.ADD_REMOVE, RECORD, 1e-3
    )
    assert spent["a", RECORD].epsilon == whole.epsilon
    books.ledger.verify()


def wrapped(charge: Charge) -> Charge:
    assert isinstance(charge.event, Repeated)
    event = Repeated(times=charge.event.times, event=OneInOneOut(event=charge.event.event))
    return Charge(party=charge.party, dataset=charge.dataset, unit=charge.unit, event=event)


def test_an_old_run_under_zero_out_needs_no_correction() -> None:
    books = OldBooks(charges(40), neighbours=Neighbours.ZERO_OUT)
    books.round(1, charges(5))
    books.ledger.commit(books.ledger.reserve("old", 2, 1, charges(5)))
    assert books.ledger.corrections() == ((), None)
    assert Kind.CORRECTION not in {entry.kind for entry in books.ledger.entries()}
    books.ledger.verify()


def test_a_training_of_the_first_version_says_by_its_plan_that_people_were_bounded() -> None:
    step = PoissonSampled(rate=0.5, event=Gaussian(noise_multiplier=3.0))
    for most, lines in ((2, 1), (None, 0)):
        books = OldBooks(charges(40, ("a",), step, people=0), plan={"training": {"max_records": most}})
        books.round(1, charges(5, ("a",), step, people=0))
        assert len(books.ledger.corrections()[0]) == lines
        books.ledger.verify()


def test_an_old_record_without_any_bound_now_costs_infinitely_much_and_is_no_broken_ledger() -> None:
    from quietsum import Laplace

    step = PoissonSampled(rate=0.5, event=Laplace(noise_multiplier=3.0))
    books = OldBooks(charges(40, ("a",), step, people=0), plan={"training": {"max_records": 2}})
    books.round(1, charges(5, ("a",), step, people=0))
    books.ledger.verify()
    with pytest.raises(BudgetExhausted):
        books.ledger.reserve("old", 2, 1, charges(5, ("a",), step, people=0))
    (line,), entry = books.ledger.corrections()
    assert line.after == float("inf") and entry is not None
    books.ledger.verify()


def test_a_snapshot_remembers_what_was_priced_by_older_rules_and_what_was_corrected() -> None:
    books = OldBooks(charges(40))
    books.round(1, charges(5))
    for _ in range(2):
        state = books.ledger._journal.state
        again = unpack(pack(state))
        again.key = state.key
        assert (again.pricing, again.accounts.repriced) == (state.pricing, state.accounts.repriced)
        assert again.accounts.corrections == state.accounts.corrections
        assert again.accounts.corrected_at == state.accounts.corrected_at
        for name, run in state.accounts.runs.items():
            other = again.accounts.runs[name]
            assert (other.pricing, other.bounded) == (run.pricing, run.bounded)
            assert all(other.shares[one].repriced is share.repriced for one, share in run.shares.items())
        books.ledger.commit(books.ledger.reserve("old", 2, books.ledger.next_attempt("old", 2), charges(5)))
    assert books.ledger.corrections()[1] is not None


# --------------------------------------------------------------------------------------------- new books


def test_a_new_plan_charges_records_beside_people_as_one_in_one_out_or_is_refused() -> None:
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    terms = Terms(limits=tuple(Budget(epsilon=90.0, delta=1e-3, unit=unit) for unit in (RECORD, PERSON)))
    datasets = [Dataset(party="a", dataset="of-a", size=60)]
    cheap = charges(20, ("a",))
    with pytest.raises(PlanRefused, match="OneInOneOut"):
        ledger.open_run("new", plan={}, terms=terms, planned=cheap, datasets=datasets)
    right = [one if one.unit is PERSON else wrapped(one) for one in cheap]
    entry = ledger.open_run("new", plan={}, terms=terms, planned=right, datasets=datasets)
    assert entry.body["pricing"] == PRICING
    ledger.verify()


def test_the_old_export_is_the_old_one(tmp_path: Path) -> None:
    assert "pricing" not in (HERE / "export.jsonl").read_text()
