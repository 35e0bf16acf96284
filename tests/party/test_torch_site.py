"""A site with a torch model: no record is read or counted before its charge is on disk, and nobody hears of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from party.asking import STYLES, Place, Server, hear, policy, reason
from quietsum.learning.rows.records import LabelsOutOfRange
from quietsum.learning.step import cross_entropy
from quietsum.party.books import write_resolved
from quietsum.party.policy import AllowedTask, SiteData, SiteDataset, SiteName
from quietsum.party.service import SiteService
from quietsum.plan import Plan, ResolvedPlan, resolve
from quietsum.tasks import Metrics, Settings
from quietsum.tasks.federated import FederatedTorch


class Lines:
    """A straight line through protected points, of which each site has its own. The coordinator has none."""

    name, title, public, size = "lines", "lines", "", 200
    settings = Settings(learning_rate=0.1, optimizer="sgd", training={})
    site_sizes: Mapping[str, int] = {"north": 120, "south": 80}

    def __init__(self, diary: list[str] | None = None, *, count: int = 110, width: int = 3, fails: str = "") -> None:
        self.diary, self.count, self.width, self.fails = diary if diary is not None else [], count, width, fails

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        difference: Tensor = model(batch[0]).squeeze(-1) - batch[1]
        return difference**2

    def sites(self) -> list[str]:
        self.diary.append("sites")
        return ["north"] * self.count

    def records(self) -> tuple[Tensor, ...]:
        self.diary.append("records")
        if self.fails:
            raise ValueError(self.fails)
        return torch.randn(self.count, self.width), torch.randn(self.count)

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"nothing": 0.0}, on="nothing")


class WithExample(Lines):
    def example(self) -> tuple[Tensor, ...]:
        return torch.zeros(1, 3), torch.zeros(1)


def nobody() -> list[str]:
    raise AssertionError("the coordinator read a record")


def at_the_coordinator(style: str) -> ResolvedPlan:
    """The plan as it is made where no record is."""
    elsewhere = WithExample()
    elsewhere.sites = elsewhere.records = nobody  # type: ignore[method-assign, assignment]
    task = FederatedTorch(elsewhere)
    values: dict[str, Any] = {
        "task": {"name": "lines"},
        "federation": {"rounds": 2, "spare_attempts": 1, "deadline": 60.0},
        "training": {"sample_rate": 0.25, "local_steps": 2},
        "privacy": STYLES[style],
    }
    return resolve(Plan.from_dict(values), task.parties(), task.dimension)


def site(lines: Lines, style: str) -> Place:
    held = policy(style, dataset=SiteDataset(name="lines-north", size=120), tasks=(AllowedTask(name="lines"),))
    place = Place(held)
    place.service = SiteService(held, place.ledger, task=lambda _: FederatedTorch(lines))
    return place


def ask(place: Place, server: Server, resolved: ResolvedPlan, number: int = 1) -> Any:
    body = {"run": "first", "round": number, "attempt": 1, "plan": resolved.plan.digest}
    return hear(place, server.write("train", body, np.zeros(resolved.dimension)))


@pytest.mark.parametrize("style", ["sample", "party"])
@pytest.mark.parametrize("kind", [Lines, WithExample])
def test_records_are_read_after_their_charge_is_on_disk(style: str, kind: type[Lines]) -> None:
    paid: list[int] = []

    class Watched(kind):  # type: ignore[misc, valid-type]
        def sites(self) -> list[str]:
            paid.append(len(place.reserved))
            return list(super().sites())

        def records(self) -> tuple[Tensor, ...]:
            paid.append(len(place.reserved))
            return tuple(super().records())

    place, server, resolved = site(Watched(), style), Server(), at_the_coordinator(style)
    assert server.enrol(place, resolved).kind == "enrolled" and paid == []
    update = ask(place, server, resolved)
    assert update.kind == "update" and update.vector is not None and paid and min(paid) == 1
    assert ask(place, server, resolved, 2).kind == "update"


WRONG: dict[str, dict[str, Any]] = {
    "more records than declared": {"count": 121},
    "no record at all": {"count": 0},
    "another shape": {"width": 4},
    "a file that cannot be read": {"fails": "row 17, patient Smith, has no label"},
}


@pytest.mark.parametrize("what", sorted(WRONG))
@pytest.mark.parametrize("style", ["sample", "party"])
@pytest.mark.some(4)
def test_what_is_wrong_with_the_records_is_told_to_nobody(
    what: str, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One record more or less must not turn an answer around at no cost."""
    place, server, resolved = site(WithExample(**WRONG[what]), style), Server(), at_the_coordinator(style)
    assert server.enrol(place, resolved).body == {"plan": resolved.plan.digest, "charges": []}
    reply = ask(place, server, resolved)
    assert len(place.reserved) == 1
    # whether it failed may depend on data: noise leaves, whatever happened
    assert reply.kind == "update" and reply.vector is not None and np.abs(reply.vector).min() > 0
    assert place.committed == 1 and "Smith" not in caplog.text
    assert ("its work failed" in caplog.text) == (what != "no record at all")  # the site's own log


def test_a_mistake_in_the_task_is_found_on_its_example_before_anything_is_charged() -> None:
    class Wrong(WithExample):
        def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return super().loss(model, batch).mean()

    diary: list[str] = []
    place, server, resolved = site(Wrong(diary), "sample"), Server(), at_the_coordinator("sample")
    assert reason(server.enrol(place, resolved)) == "its task cannot run here"
    assert not place.reserved and diary == []


def test_without_an_example_the_same_mistake_is_found_once_it_is_paid_for(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Lines):
        def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return super().loss(model, batch).mean()

    place, server, resolved = site(Wrong(), "sample"), Server(), at_the_coordinator("sample")
    assert server.enrol(place, resolved).kind == "enrolled"
    assert ask(place, server, resolved).kind == "update" and len(place.reserved) == 1
    assert "its work failed" in caplog.text and "InvalidParameter" in caplog.text


def test_noise_alone_of_a_torch_model_looks_like_its_updates() -> None:
    """Single precision shows: the change of a weight is the difference of two float32 numbers."""
    sent = {}
    for fails in ("", "row 17, patient Smith, has no label"):
        place, server, resolved = site(WithExample(fails=fails), "sample"), Server(), at_the_coordinator("sample")
        server.enrol(place, resolved)
        params = np.linspace(0.3, 0.7, resolved.dimension).astype(np.float32).astype(np.float64)
        body = {"run": "first", "round": 1, "attempt": 1, "plan": resolved.plan.digest}
        letter = hear(place, server.write("train", body, params))
        assert letter.vector is not None
        sent[fails] = params + letter.vector
    for after in sent.values():
        np.testing.assert_array_equal(after, after.astype(np.float32).astype(np.float64))
    other = np.random.default_rng(1).normal(size=4) + 0.5
    assert (other != other.astype(np.float32)).any()  # the control: numpy's own noise would be seen


def test_public_records_are_tried_when_the_site_enrols() -> None:
    """The control: nobody in them is protected, so their owner may as well hear of it now."""
    diary: list[str] = []
    lines, server = WithExample(diary, count=121), Server()
    held = policy(
        "sample",
        dataset=SiteDataset(name="lines-north", size=120, public="made up"),
        tasks=(AllowedTask(name="lines"),),
        record=None,
    )
    place = Place(held)
    place.service = SiteService(held, place.ledger, task=lambda _: FederatedTorch(lines))
    values = write_resolved(at_the_coordinator("sample"))
    assert reason(server.enrol(place, values)) == "its task cannot run here" and "sites" in diary


def test_rows_of_heart_are_compared_with_the_published_ones_once_they_are_paid_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One changed value is found, and nobody hears of it for nothing."""
    from quietsum.tasks.gallery.heart import PUBLISHED, HeartTask, _read_package

    lines = _read_package("heart_4centers.csv").splitlines()[1:]
    for name in PUBLISHED:
        rows = [line.partition(",")[2] for line in lines if line.startswith(f"{name},")]
        (tmp_path / f"processed.{name}.data").write_text("\n".join(rows) + "\n", encoding="ascii")
    plan_ = Plan.from_dict({
        "task": {"name": "heart"},
        "federation": {"rounds": 2, "deadline": 60.0},
        "training": {"sample_rate": 0.25, "local_steps": 2},
        "privacy": STYLES["sample"],
    })  # fmt: skip
    file = tmp_path / "processed.va.data"
    whole = file.read_bytes()
    for changed in (False, True):
        file.write_bytes(whole.replace(b"63,1,4,140", b"64,1,4,140", 1) if changed else whole)
        task = HeartTask.from_options({"path": str(tmp_path)})
        held = policy(
            "sample",
            site=SiteName(name="va"),
            dataset=SiteDataset(name="uci-heart-va", size=85),
            tasks=(AllowedTask(name="heart"),),
        )
        place, server = Place(held), Server()
        place.service = SiteService(held, place.ledger, task=lambda _, made=task: made)  # type: ignore[misc]
        resolved = resolve(plan_, task.parties(), task.dimension)
        body: dict[str, Any] = {"run": "first", "resolved": write_resolved(resolved)}
        assert hear(place, server.write("enrol", body, to="va")).kind == "enrolled"
        body = {"run": "first", "round": 1, "attempt": 1, "plan": resolved.plan.digest}
        reply = hear(place, server.write("train", body, np.zeros(resolved.dimension), to="va"))
        assert reply.kind == "update" and len(place.reserved) == 1
        assert ("CorruptState in heart.py" in caplog.text) == changed  # told to the site alone


# ------------------------------------------------------------------------------------- rows that do not fit


@pytest.mark.parametrize("broken", [0, 5])
def test_with_drop_a_torch_site_trains_on_the_records_that_fit(
    broken: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Some(WithExample):
        def records(self) -> tuple[Tensor, ...]:
            values, labels = super().records()
            values = values.clamp(-3, 3)
            values[:broken, 0] = 700.0
            return values, labels

    (tmp_path / "data.toml").write_text(
        'columns = [{ name = "x.0", max = 120 }, { name = "x.1" }, { name = "x.2" }, { name = "label" }]\n'
    )
    data = SiteData(schema="data.toml", on_failure="drop")
    dataset = SiteDataset(name="lines-north", size=120)
    held = policy("sample", dataset=dataset, tasks=(AllowedTask(name="lines"),), data=data, folder=tmp_path)
    place, server, resolved = Place(held), Server(), at_the_coordinator("sample")
    task = FederatedTorch(Some())
    place.service = SiteService(held, place.ledger, task=lambda _: task)
    assert server.enrol(place, resolved).kind == "enrolled"
    assert [ask(place, server, resolved, number).kind for number in (1, 2)] == ["update", "update"]
    assert ("left out: range in x.0" in caplog.text) == bool(broken) and "its work failed" not in caplog.text
    assert len(task._select("north", resolved.orders("north"))) == 110 - broken


class Classes(Lines):
    """Two classes, and a column that says which rows are meant to be left out."""

    def __init__(self, *, bad: int, marked: bool = True) -> None:
        super().__init__()
        self.bad, self.marked = bad, marked

    def model(self) -> nn.Module:
        return nn.Linear(3, 2)

    loss = staticmethod(cross_entropy)

    def example(self) -> tuple[Tensor, ...]:
        return torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)

    def records(self) -> tuple[Tensor, ...]:
        values, labels = torch.randn(self.count, 3).clamp(-3, 3), torch.arange(self.count) % 2
        labels[: self.bad] = 7
        values[: self.bad, 0] = 700.0 if self.marked else 0.0
        return values, labels


SCHEMA = 'columns = [{ name = "x.0", max = 120 }, { name = "x.1" }, { name = "x.2" }, { name = "label" }]\n'


@pytest.mark.parametrize("marked", [True, False], ids=["bad-rows-left-out", "bad-rows-used"])
def test_where_labels_are_checked_those_of_rows_that_are_left_out_are_not(
    marked: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a graphics card, where one bad label ends the work for all. The control: labels of rows that are used."""
    monkeypatch.setattr(FederatedTorch, "_checks_labels", True)
    (tmp_path / "data.toml").write_text(SCHEMA)
    task = FederatedTorch(Classes(bad=5, marked=marked))
    plan_ = Plan.from_dict({
        "task": {"name": "lines"}, "federation": {"rounds": 2, "spare_attempts": 1, "deadline": 60.0},
        "training": {"sample_rate": 0.25, "local_steps": 2}, "privacy": STYLES["sample"],
    })  # fmt: skip
    resolved = resolve(plan_, task.parties(), task.dimension)
    held = policy(
        "sample", dataset=SiteDataset(name="lines-north", size=120), tasks=(AllowedTask(name="lines"),),
        data=SiteData(schema="data.toml", on_failure="drop"), folder=tmp_path,
    )  # fmt: skip
    place, server = Place(held), Server()
    place.service = SiteService(held, place.ledger, task=lambda _: task)
    assert server.enrol(place, resolved).kind == "enrolled"
    assert ask(place, server, resolved, 1).kind == "update"  # either way (rule 17)
    assert len(place.reserved) == place.committed == 1
    assert ("its work failed" in caplog.text) != marked
    assert ("LabelsOutOfRange" in caplog.text) != marked


def test_a_rehearsal_looks_at_no_label_of_a_row_that_nobody_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FederatedTorch, "_checks_labels", True)
    task = FederatedTorch(Classes(bad=5))
    with pytest.raises(LabelsOutOfRange):
        task.rehearse()
    task.leave_out(lambda rows: (rows[0][:, 0] < 120).numpy())
    task.rehearse()
    task.leave_out(lambda rows: np.zeros(len(rows[0]), dtype=bool))  # not one row is left
    task.rehearse(at_the_coordinator("sample").orders("north"))
    task.leave_out(lambda rows: np.ones(len(rows[0]), dtype=bool))
    with pytest.raises(LabelsOutOfRange):
        task.rehearse()
