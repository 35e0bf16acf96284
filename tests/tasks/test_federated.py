"""Torch tasks as federations: who holds what, what a round does, and what is refused."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.step import cross_entropy
from quietsum.mechanisms.gaussian import ClippedSum
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import FederationPlan, PartyFacts, Plan, TaskPlan, TrainingPlan
from quietsum.plan.orders import LocalOrders
from quietsum.sampling import Everyone, Poisson
from quietsum.tasks import FederatedNumpy, FederatedOwn, Metrics, Settings, Task, task_of
from quietsum.tasks.federated import FederatedTorch
from quietsum.tasks.gallery.digits import DigitsTask

NEEDS_DATA = pytest.mark.skipif(not os.environ.get("QUIETSUM_DATA"), reason="QUIETSUM_DATA names no folder of data")
NOISE = ClippedSum(max_norm=0.5, noise_multiplier=1.0)


class VisitsTask:
    """60 visits of 20 patients, three to each, at three clinics."""

    name, title = "visits", "made-up visits"
    size, public, person = 60, "made up for a test", "patient"
    settings = Settings(learning_rate=1.0, optimizer="sgd", training={})
    loss = staticmethod(cross_entropy)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))

    def records(self) -> tuple[Tensor, ...]:
        chance = np.random.default_rng(0)
        labels = np.arange(60) % 2
        values = chance.normal(size=(60, 2)) + labels[:, None]
        return torch.from_numpy(values).float(), torch.from_numpy(labels)

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"mode": float(model.training)}, on="nothing at all")


class AtClinics(VisitsTask):
    """The same, and it knows its clinics and patients."""

    def sites(self) -> tuple[str, ...]:
        return tuple(("east", "north", "south")[patient % 3] for patient in self.people().tolist())

    def people(self) -> NDArray[np.int64]:
        return np.arange(60) // 3


class Protected(AtClinics):
    public = ""


class Declared(Protected):
    site_sizes: Mapping[str, int] = {"east": 25, "north": 30, "south": 20}


def orders(**changes: Any) -> LocalOrders:
    values: dict[str, Any] = {"steps": 3, "sampling": Everyone(), "expected_batch": 20.0, "learning_rate": 0.5}
    return LocalOrders(**{**values, **changes})


def plan(name: str = "digits", *, engine: str = "auto", **federation: Any) -> Plan:
    return Plan(task=TaskPlan(name=name), federation=FederationPlan(**federation), training=TrainingPlan(engine=engine))


# ---------------------------------------------------------------------------------------------- who holds what


def test_natural_sites_have_books_of_their_own() -> None:
    task = FederatedTorch(AtClinics())
    assert task.parties() == (
        PartyFacts(name="east", dataset="visits-east", size=21, public="made up for a test"),
        PartyFacts(name="north", dataset="visits-north", size=21, public="made up for a test"),
        PartyFacts(name="south", dataset="visits-south", size=18, public="made up for a test"),
    )
    assert [party.account for party in task.parties()] == ["east", "north", "south"]


def test_made_clients_share_the_books_of_their_holder() -> None:
    for split, count in (("iid", 20), ("natural", 2), ("dirichlet(0.5)", 20)):
        task = FederatedTorch(VisitsTask() if "diri" in split else AtClinics(), split=split, parties=count)
        facts = task.parties()
        assert len(facts) == count and sum(party.size for party in facts) == 60
        assert {(party.dataset, party.account) for party in facts} == {("visits", "here")}
        assert facts[0].name == "client-0001" and facts[-1].name == f"client-{count:04d}"


def test_every_record_is_at_one_party_with_its_patient() -> None:
    for split, count in (("iid", 7), ("natural", ()), ("natural", 2)):
        task = FederatedTorch(AtClinics(), split=split, parties=count)
        names = [party.name for party in task.parties()]
        whole = torch.cat([task.records_of(name)[0] for name in names])
        assert sorted(map(tuple, whole.tolist())) == sorted(map(tuple, AtClinics().records()[0].tolist()))
        patients = [set(task.people_of(name).tolist()) for name in names]  # type: ignore[union-attr]
        assert sum(map(len, patients)) == len(set().union(*patients)) == 20


def test_a_patient_at_two_clinics_is_refused() -> None:
    class Wandering(AtClinics):
        def sites(self) -> tuple[str, ...]:
            return ("west", *super().sites()[1:])

    with pytest.raises(InvalidParameter, match="one patient in two sites pays twice"):
        FederatedTorch(Wandering()).parties()


def test_a_federation_is_the_same_in_every_process() -> None:
    one, two = (FederatedTorch(DigitsTask(), split="dirichlet(0.3)", parties=9) for _ in range(2))
    assert one.parties() == two.parties() and one.partition.party.tolist() == two.partition.party.tolist()
    np.testing.assert_array_equal(one.initial(), two.initial())
    torch.manual_seed(99)
    before = torch.get_rng_state()
    np.testing.assert_array_equal(FederatedTorch(DigitsTask(), split="iid", parties=9).initial(), one.initial())
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator is left alone"


# ------------------------------------------------------------------------------------------ protected records


def test_sizes_of_protected_sites_are_declared_and_never_counted() -> None:
    with pytest.raises(InvalidParameter, match="private unless it is declared"):
        FederatedTorch(Protected()).parties()
    with pytest.raises(InvalidParameter, match="their sites keep books of them already"):
        FederatedTorch(Protected(), split="iid", parties=4)  # one record must not have two books
    assert [party.size for party in FederatedTorch(Declared()).parties()] == [25, 30, 20]


def test_sizes_of_protected_clients_come_from_the_declared_size() -> None:
    class Alone(VisitsTask):
        public = ""

        def records(self) -> tuple[Tensor, ...]:
            raise AssertionError("nobody may look")

    assert [party.size for party in FederatedTorch(Alone(), split="iid", parties=4).parties()] == [15, 15, 15, 15]
    with pytest.raises(InvalidParameter, match="labels of protected records"):
        FederatedTorch(Alone(), split="dirichlet(1)", parties=4)


@pytest.mark.parametrize(
    ("sizes", "lesson"),
    [
        ({"east": 25, "north": 30}, "every site"),
        ({"east": 20, "north": 30, "south": 20}, "above"),
        ({"east": 25.5, "north": 30, "south": 20}, "site_sizes"),
        ({"east": -1, "north": 30, "south": 20}, "site_sizes"),
    ],
)
def test_declared_sizes_fit_what_is_there(sizes: Mapping[str, int], lesson: str) -> None:
    class Wrong(Protected):
        site_sizes = sizes

    with pytest.raises(InvalidParameter, match=lesson):
        task = FederatedTorch(Wrong())
        task.parties()  # by what is declared, where no record is
        task.rehearse()


def test_a_declared_site_without_records_is_a_party_like_any_other() -> None:
    """That it has none is private: it takes steps of noise alone."""

    class Emptied(Declared):
        site_sizes: Mapping[str, int] = {**Declared.site_sizes, "west": 10}

    task = FederatedTorch(Emptied())
    assert [party.name for party in task.parties()] == ["east", "north", "south", "west"]
    assert task.train("west", task.initial(), orders(mechanism=NOISE), system_randomness()).any()
    assert not task.train("west", task.initial(), orders(), system_randomness()).any()


def test_protected_records_may_be_fewer_than_declared() -> None:
    """A patient who comes or goes changes neither the sizes nor whose clients the others are."""

    class Alone(VisitsTask):
        size, public, here = 64, "", 60

        def records(self) -> tuple[Tensor, ...]:
            return tuple(part[: self.here] for part in super().records())

    class Fewer(Alone):
        here = 59

    one, two = (FederatedTorch(task(), split="iid", parties=4) for task in (Alone, Fewer))
    assert one.parties() == two.parties() and {party.size for party in one.parties()} == {16}
    rows = [[len(task.records_of(party.name)[0]) for party in task.parties()] for task in (one, two)]
    assert sum(rows[0]) == 60 and sum(rows[1]) == 59 and sum(a != b for a, b in zip(*rows, strict=True)) == 1

    class Public(Alone):
        public = "made up"

    with pytest.raises(InvalidParameter, match="there are fewer"):
        FederatedTorch(Public(), split="iid", parties=4).records_of("client-0001")


def test_more_records_than_were_dealt_out_train_nobody() -> None:
    class Grown(VisitsTask):
        size = 50

    task = FederatedTorch(Grown(), split="iid", parties=5)
    with pytest.raises(InvalidParameter, match="deals out 50 records, and there are more"):
        task.train("client-0001", task.initial(), orders(), system_randomness())


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("task", "options", "lesson"),
    [
        (VisitsTask, {}, "does not say where its records come from"),
        (DigitsTask, {}, "the file names no writer"),
        (VisitsTask, {"split": "iid"}, "not said how many"),
        (VisitsTask, {"split": "iid", "parties": ("north",)}, "without names"),
        (VisitsTask, {"split": "by label", "parties": 3}, "choose 'natural'"),
        (VisitsTask, {"split": "iid", "parties": 3, "engine": "numpy"}, "torch model"),
        (VisitsTask, {"split": "iid", "parties": 61}, "more clients than the 60 records"),
        (AtClinics, {"split": "iid", "parties": 21}, "more clients than the 20 people"),
        (AtClinics, {"split": "dirichlet(1)", "parties": 3}, "a patient's records must stay together"),
    ],
)
def test_what_cannot_be_dealt_out_is_an_error_that_teaches(task: Any, options: Any, lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        FederatedTorch(task(), **options).parties()


def test_masks_are_no_labels() -> None:
    class Masks(VisitsTask):
        def records(self) -> tuple[Tensor, ...]:
            return torch.zeros(60, 2), torch.zeros(60, 4, dtype=torch.int64)

    with pytest.raises(InvalidParameter, match="needs one label per record"):
        FederatedTorch(Masks(), split="dirichlet(1)", parties=3).parties()


def test_batch_norm_is_refused_whatever_the_style() -> None:
    class Mixing(AtClinics):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    with pytest.raises(InvalidParameter, match="GroupNorm"):
        FederatedTorch(Mixing())


# ------------------------------------------------------------------------------------------------- a round


def test_training_moves_the_weights_and_scoring_looks_in_scoring_mode() -> None:
    task = FederatedTorch(AtClinics())
    start = task.initial()
    assert start.shape == (task.dimension,) == (2 * 4 + 4 + 4 * 2 + 2,)
    for mechanism in (None, NOISE):
        delta = task.train("north", start, orders(mechanism=mechanism), system_randomness())
        assert delta.shape == start.shape and delta.dtype == np.float64 and np.isfinite(delta).all() and delta.any()
    np.testing.assert_array_equal(task.initial(), start)
    assert task.evaluate(start + delta).values == {"mode": 0.0}


def test_many_parties_together_are_each_party_alone() -> None:
    task = FederatedTorch(AtClinics(), split="iid", parties=6)
    names = [party.name for party in task.parties()]
    told = [orders(steps=1 + place % 3, momentum=0.5, proximal=0.2, max_records=2) for place in range(6)]
    together: dict[str, NDArray[np.float64]] = {}
    for some, rows in task.train_many(names, task.initial(), told, system_randomness()):
        together.update(zip(some, rows, strict=True))
    assert set(together) == set(names)
    for name, each in zip(names, told, strict=True):
        alone = task.train(name, task.initial(), each, system_randomness())
        np.testing.assert_allclose(together[name], alone, atol=1e-6)
        unbounded = task.train(name, task.initial(), orders(steps=each.steps), system_randomness())
        assert np.abs(unbounded - alone).max() > 1e-4, "the control: another order is another result"


def test_a_broken_record_counts_as_zero_also_side_by_side() -> None:
    class Broken(VisitsTask):
        def records(self) -> tuple[Tensor, ...]:
            values, labels = super().records()
            values[4] = float("nan")
            return values, labels

    task = FederatedTorch(Broken(), split="iid", parties=4)
    names = [party.name for party in task.parties()]
    for some, rows in task.train_many(names, task.initial(), [orders()] * 4, system_randomness()):
        for name, row in zip(some, rows, strict=True):
            assert np.isfinite(row).all()
            np.testing.assert_allclose(row, task.train(name, task.initial(), orders(), system_randomness()), atol=1e-6)


def test_examples_cannot_be_clipped_side_by_side() -> None:
    task = FederatedTorch(AtClinics())
    with pytest.raises(InvalidParameter, match="clips every example"):
        next(task.train_many(["north"], task.initial(), [orders(mechanism=NOISE)], system_randomness()))


def test_people_are_bounded_at_the_party() -> None:
    """With one visit of each patient a clinic has 7 records; the plain sum of gradients is another one then."""
    task = FederatedTorch(AtClinics())
    told = {"steps": 1, "learning_rate": 1.0, "expected_batch": 7.0}
    one = task.train("north", task.initial(), orders(max_records=1, **told), system_randomness())
    kept = np.flatnonzero(np.array(AtClinics().sites()) == "north")[::3]

    class Kept(VisitsTask):
        size = 7

        def records(self) -> tuple[Tensor, ...]:
            return tuple(part[torch.from_numpy(kept)] for part in super().records())

    other = FederatedTorch(Kept(), split="iid", parties=1)
    wanted = other.train("client-0001", task.initial(), orders(**told), system_randomness())
    np.testing.assert_allclose(one, wanted, atol=1e-7)
    all_of_them = task.train("north", task.initial(), orders(**told), system_randomness())
    assert np.abs(all_of_them - wanted).max() > 1e-3
    with pytest.raises(InvalidParameter, match="whose"):
        nobody = FederatedTorch(VisitsTask(), split="iid", parties=2)
        nobody.train("client-0001", nobody.initial(), orders(max_records=1), system_randomness())
    with pytest.raises(InvalidParameter, match="whose"):
        next(nobody.train_many(["client-0001"], nobody.initial(), [orders(max_records=1)], system_randomness()))
    with pytest.raises(InvalidParameter, match="whose"):
        nobody.rehearse(orders(max_records=1))
    task.rehearse(orders(max_records=1))


def test_a_rehearsal_finds_a_model_that_does_not_fit() -> None:
    class Wrong(AtClinics):
        def model(self) -> nn.Module:
            return nn.Linear(3, 2)

    FederatedTorch(AtClinics()).rehearse()
    FederatedTorch(AtClinics()).rehearse(orders(mechanism=NOISE, sampling=Poisson(rate=0.3), expected_batch=6.0))
    with pytest.raises(InvalidParameter, match="cannot read made-up records"):
        FederatedTorch(Wrong()).rehearse()


def unreadable(*_: object) -> Any:
    raise AssertionError("a record was read")


def test_a_rehearsal_unseen_finds_the_same_and_reads_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Declared):
        def example(self) -> tuple[Tensor, ...]:
            return torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)

    class Wrong(Elsewhere):
        def model(self) -> nn.Module:
            return nn.Linear(3, 2)

    for name in ("records", "sites", "people"):
        monkeypatch.setattr(AtClinics, name, unreadable)
    task = FederatedTorch(Elsewhere())
    assert [(facts.name, facts.size) for facts in task.parties()] == [("east", 25), ("north", 30), ("south", 20)]
    task.rehearse_unseen(orders(mechanism=NOISE, sampling=Poisson(rate=0.3), expected_batch=6.0))
    FederatedTorch(Declared()).rehearse_unseen()  # without an example there is nothing to try yet
    with pytest.raises(InvalidParameter, match="cannot read made-up records"):
        FederatedTorch(Wrong()).rehearse_unseen()
    with pytest.raises(AssertionError, match="a record was read"):
        task.rehearse()  # the control


def test_labels_of_protected_records_are_not_told_about() -> None:
    class Odd(Declared):
        def records(self) -> tuple[Tensor, ...]:
            values, labels = super().records()
            labels[5] = 7
            return values, labels

    FederatedTorch(Odd()).rehearse()

    class OddInPublic(Odd):
        public = "made up"

    with pytest.raises(InvalidParameter, match="class"):
        FederatedTorch(OddInPublic()).rehearse()


def test_it_offers_every_way_to_train() -> None:
    task = FederatedTorch(AtClinics())
    assert isinstance(task, Task) and task.follows_orders
    assert task.trains_many and task.sums_gradients and task.leaves_out


# ----------------------------------------------------------------------------------------- the task of a plan


def test_a_plan_names_its_task_whichever_kind_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heart = task_of(plan("heart"))
    assert isinstance(heart, FederatedNumpy) and heart.dimension == 15
    digits = task_of(plan("digits", split="dirichlet(0.5)", parties=12))
    assert isinstance(digits, FederatedTorch) and len(digits.parties()) == 12
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    (tmp_path / "own_kinds.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(task_of(plan("own_kinds:Torch", split="iid", parties=2)), FederatedTorch)
    assert isinstance(task_of(plan("own_kinds:Federated")), FederatedOwn)
    assert isinstance(task_of(plan("own_kinds:Numpy")), FederatedNumpy)
    for name, lesson in (("Half", "lacks size"), ("Nothing", "lacks name"), ("Missing", "importable")):
        with pytest.raises(InvalidParameter, match=lesson):
            task_of(plan(f"own_kinds:{name}"))


OWN = """
from quietsum.tasks.gallery.digits import DigitsTask
class Torch(DigitsTask.__mro__[0]):
    pass
class Numpy:
    name = title = "n"
    dimension = 1
    parties = initial = rows = gradients = evaluate = lambda self, *given: None
class Federated:
    name = title = "f"
    dimension = 1
    parties = initial = evaluate = train = lambda self, *given: None
class Half:
    name = title = "h"
    def model(self): ...
class Nothing:
    pass
"""


@pytest.mark.parametrize("federation", [{"split": "iid", "parties": 3}, {"parties": 3}, {"split": "dirichlet(1)"}])
def test_sites_of_a_numpy_task_cannot_be_dealt_out_anew(federation: Any) -> None:
    with pytest.raises(InvalidParameter, match="lie at sites of their own"):
        task_of(plan("heart", **federation))


def test_an_unknown_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidParameter, match='did you mean "digits"'):
        task_of(plan("digit"))
    with pytest.raises(InvalidParameter, match="torch model"):
        task_of(plan("digits", engine="numpy", split="iid", parties=3))


def test_a_task_beside_the_plan_is_found_in_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(OWN)
    code = (
        "from quietsum.plan import *; from quietsum.tasks import task_of; "
        "print(task_of(Plan(task=TaskPlan(name='beside:Numpy'))).name)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.strip() == "n", done.stderr
    gone = subprocess.run([sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, timeout=60)
    assert gone.returncode and "importable" in gone.stderr


def test_the_class_of_the_page_runs_as_a_federation(tmp_path: Path) -> None:
    """The how-to page's class and run.toml, from the command line, in the folder where they lie."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "your-own-task.md").read_text(encoding="utf-8")
    source = ""
    for example in doctest.DocTestParser().get_examples(page):
        source += example.source
        if example.source.startswith("class VisitsTask"):
            break
    (tmp_path / "visits.py").write_text(source, encoding="utf-8")
    (tmp_path / "run.toml").write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    command = Path(sys.executable).parent / "quietsum"
    done = subprocess.run(
        [command, "run", "run.toml"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "round 5/5 · 4 of 4 parties" in done.stdout and "ε 3.00 of 3 per record" in done.stdout


def test_a_numpy_task_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from quietsum.plan import *; from quietsum.tasks import task_of; task_of(Plan()); "
        "import quietsum.party; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


# --------------------------------------------------------------------------------------------- the real data


@NEEDS_DATA
def test_pose_is_five_people() -> None:
    task = task_of(plan("pose"))
    assert [(party.name, party.size) for party in task.parties()] == [
        ("subject-01", 60), ("subject-03", 56), ("subject-05", 57), ("subject-07", 59), ("subject-09", 60),
    ]  # fmt: skip
    assert task.parties()[0].account == "subject-01"


@NEEDS_DATA
def test_cards_are_clients_of_one_bank() -> None:
    every = task_of(plan("cards")).parties()
    assert len(every) > 20_000 and sum(party.size for party in every) == 79_718
    assert {party.account for party in every} == {"here"}
    some = task_of(plan("cards", parties=500))
    assert isinstance(some, FederatedTorch) and len(some.parties()) == 500
    assert sum(party.size for party in some.parties()) == 79_718 and min(party.size for party in some.parties()) > 90


@NEEDS_DATA
@pytest.mark.parametrize(
    ("name", "why"), [("chest-xray", "no hospital"), ("fraud", "neither cards nor banks"), ("mnist", "no writer")]
)
def test_data_without_sites_says_so(name: str, why: str) -> None:
    with pytest.raises(InvalidParameter, match=why):
        task_of(plan(name))


@NEEDS_DATA
def test_nuclei_lie_at_microscopes() -> None:
    parties = task_of(plan("nuclei")).parties()
    assert sum(party.size for party in parties) == 532 and "256x256" in [party.name for party in parties]


# --------------------------------------------------------------------------------------------------- where


@pytest.mark.parametrize("name", ["cuda", "mps", "toaster", ""])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a graphics card")
    with pytest.raises(InvalidParameter, match="choose 'cpu'"):
        FederatedTorch(DigitsTask(), split="iid", parties=4, device=name)


# ---------------------------------------------------------------------------------- records that are left out


class OnlyThese(AtClinics):
    """The records of these numbers and no others, whose sizes are then counted anew."""

    def __init__(self, kept: NDArray[np.int64]) -> None:
        self.kept, self.size = kept, len(kept)

    def records(self) -> tuple[Tensor, ...]:
        return tuple(part[torch.from_numpy(self.kept)] for part in super().records())

    def people(self) -> NDArray[np.int64]:
        return (np.arange(60) // 3)[self.kept]


def sum_of(task: FederatedTorch, asked: LocalOrders) -> NDArray[np.float64]:
    return task.clipped_sum("east", task.initial(), asked, system_randomness(), max_norm=0.5)


def test_records_that_are_left_out_are_in_no_sum_and_in_no_step() -> None:
    left = AtClinics().records()[0][:, 0].numpy() > 1.0
    task, without = FederatedTorch(AtClinics()), FederatedTorch(OnlyThese(np.flatnonzero(~left)))
    before = sum_of(task, orders())
    task.leave_out(lambda batch: (batch[0][:, 0] <= 1.0).numpy())
    np.testing.assert_allclose(sum_of(task, orders()), sum_of(without, orders()), rtol=1e-4, atol=1e-6)
    assert np.abs(sum_of(task, orders()) - before).max() > 0.1, "the control: they were in it"
    trained, asked = task.train("east", task.initial(), orders(), system_randomness()), orders()
    expected = without.train("east", task.initial(), asked, system_randomness())
    np.testing.assert_allclose(trained, expected, rtol=1e-5, atol=1e-8)
    (_, many), *_ = task.train_many(["east"], task.initial(), [asked], system_randomness())
    np.testing.assert_allclose(many[0], expected, rtol=1e-4, atol=1e-6)


def test_no_other_record_of_a_person_comes_in_for_one_that_is_left_out() -> None:
    """Of three records of each patient two are used; without the first one, the second is left and not the third."""
    task, asked = FederatedTorch(AtClinics()), orders(max_records=2)
    firsts = AtClinics().records()[0][::3, 0]
    task.leave_out(lambda batch: ~np.isin(batch[0][:, 0].numpy(), firsts.numpy()))
    seconds = FederatedTorch(OnlyThese(np.arange(1, 60, 3)))
    np.testing.assert_allclose(sum_of(task, asked), sum_of(seconds, orders()), rtol=1e-4, atol=1e-6)
    both = FederatedTorch(OnlyThese(np.flatnonzero(np.arange(60) % 3)))
    assert np.abs(sum_of(task, asked) - sum_of(both, orders())).max() > 0.1, "the control"


def differing(bound: float, batch: Sequence[Tensor]) -> Any:
    """Where the first number of a record is not ``bound``."""
    return batch[0][:, 0].numpy() != bound


@pytest.mark.parametrize("most", [None, 2])
def test_a_record_that_does_not_fit_any_more_moves_the_sum_by_its_own_part_alone(most: int | None) -> None:
    """Within the clip: what zero-out, the closest relation, is priced by."""
    asked, clip = orders(max_records=most), 0.5
    bounds = np.sort(AtClinics().records()[0][:, 0].numpy())
    sums = []
    for bound in [*bounds[::7], np.inf]:
        task = FederatedTorch(AtClinics())
        task.leave_out(partial(differing, bound))
        sums.append(sum_of(task, asked))
    lengths = [float(np.linalg.norm(one - sums[-1])) for one in sums[:-1]]
    assert max(lengths) <= clip * (1 + 1e-6) and sum(length > 1e-3 for length in lengths) >= 2
