"""Root sets: public rows that are no longer scored, an update by a party's own orders, and refusals before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.federation.round import run_round
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import (
    AggregationPlan,
    FederationPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    TaskPlan,
    TrainingPlan,
    resolve,
)
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import FederatedNumpy, FederatedTorch, as_task, optional_part, task_of
from quietsum.tasks.gallery.heart import HeartTask, fit, make_patients
from quietsum.tasks.roots import refuse_without_root, root_rows, split_root


def heart_plan(rule: str = "trust", root: object = 60, **fields: object) -> Plan:
    values = {
        "task": TaskPlan(name="heart", options={"root": root} if root else {}),
        "federation": FederationPlan(rounds=4),
        "training": TrainingPlan(sample_rate=1.0, local_steps=2),
        "privacy": PrivacyPlan(record=RecordPlan(epsilon=8, delta=1e-4)),
        "aggregation": AggregationPlan(rule=rule, attackers=2),
        **fields,
    }
    return Plan(**values)  # type: ignore[arg-type]


def test_a_root_set_holds_every_class_by_its_share_and_at_least_once() -> None:
    labels = np.repeat([0, 1, 2], [600, 390, 10])
    chosen = root_rows(labels, 50)
    assert chosen.sum() == 50 and np.bincount(labels[chosen]).tolist() == [30, 19, 1]
    np.testing.assert_array_equal(root_rows(labels, 50), chosen)
    assert not root_rows(labels, 0).any()
    for count in (501, 2):
        with pytest.raises(InvalidParameter):
            root_rows(labels, count)


@pytest.mark.parametrize("root", [0, 60])
def test_rows_of_the_root_set_are_not_scored(root: int) -> None:
    plain, task = HeartTask.from_package(), HeartTask.from_options({"root": root})
    scored = np.concatenate([rows.features for rows in task._held_out.values()])
    whole = np.concatenate([rows.features for rows in plain._held_out.values()])
    assert task.root_size == root and len(scored) == len(whole) - root == 254 - root
    if root:
        rows = task._root
        together = np.concatenate([scored, rows.features])
        np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(whole, axis=0))
        assert 0.3 < rows.labels.mean() < 0.7
    model = np.linspace(-1, 1, task.dimension)
    metrics = task.evaluate(model)
    assert metrics.on.startswith(f"{254 - root} published")
    assert root or metrics == plain.evaluate(model)  # without a root set nothing changes


def test_no_protected_row_is_in_a_root_set() -> None:
    task = HeartTask.from_options({"root": 100})
    training = {row.tobytes() for party in task.parties() for row in task.rows(party.name).features}
    shared = sum(row.tobytes() in training for row in task._root.features)
    scored = HeartTask.from_package()._held_out.values()
    assert shared <= sum(row.tobytes() in training for rows in scored for row in rows.features)  # patients alike


def test_made_up_patients_know_which_way_risks_go_and_are_nobody() -> None:
    task = HeartTask.from_options({"root": "made-up"})
    rows = make_patients()
    np.testing.assert_array_equal(task._root.features, rows.features)
    assert task.evaluate(fit(rows)).values["accuracy"] > 0.7  # better than chance, on rows it knows nothing of
    assert task.evaluate(np.zeros(15)).on == HeartTask.from_package().evaluate(np.zeros(15)).on
    assert np.abs(rows.features).max() <= 3


def test_a_root_update_is_a_partys_without_noise() -> None:
    plan = heart_plan()
    task = task_of(plan)
    assert isinstance(task, FederatedNumpy) and isinstance(task.task, HeartTask)
    resolved = resolve(plan, task.parties(), task.dimension)
    orders = resolved.orders("va", 1)
    assert orders.mechanism is not None
    params, rows = np.full(15, 0.1), task.task._root
    here = params.copy()
    for _ in range(orders.steps):
        gradients = task.task.gradients(here, rows.features, rows.labels)
        clipped = gradients * np.minimum(1, orders.mechanism.max_norm / np.linalg.norm(gradients, axis=1))[:, None]
        here = here - orders.learning_rate * clipped.sum(axis=0) / len(rows)
    found = [task.trial(params, orders, system_randomness()).update() for _ in range(2)]
    np.testing.assert_allclose(found[0], here - params, atol=1e-12)
    np.testing.assert_array_equal(found[0], found[1])  # every row in every step, and no noise
    losses = task.trial(params, orders, system_randomness()).losses(np.stack([np.zeros(15), here - params]))
    assert losses[1] < losses[0]


def test_torch_tasks_hold_roots_too() -> None:
    pytest.importorskip("torch")
    federation = FederationPlan(split="iid", parties=4, rounds=3)
    plan = heart_plan("fltrust", task=TaskPlan(name="digits", options={"root": 100}), federation=federation)
    task = task_of(plan)
    assert isinstance(task, FederatedTorch) and task.root_size == 100
    plain = task_of(
        heart_plan("mean", task=TaskPlan(name="digits"), federation=federation, aggregation=AggregationPlan())
    )
    assert plain.root_size == 0 and "445 " in plain.evaluate(plain.initial()).on
    assert "345 " in task.evaluate(task.initial()).on
    np.testing.assert_array_equal(plain.initial(), task.initial())
    root: Any = optional_part(task.task, "root")
    labels = root()[1].numpy()
    assert np.bincount(labels, minlength=10).min() >= 9
    resolved = resolve(plan, task.parties(), task.dimension)
    orders = resolved.orders(task.parties()[0].name, 1)
    assert orders.mechanism is not None
    trial = task.trial(task.initial(), orders, system_randomness())
    update = trial.update()
    assert np.linalg.norm(update) <= orders.steps * orders.learning_rate * orders.mechanism.max_norm * 1.001
    losses = trial.losses(np.stack([np.zeros_like(update), update, -update]))
    assert losses[1] < losses[0] < losses[2]
    with pytest.raises(InvalidParameter, match="no public constants draw a digit"):
        task_of(heart_plan(task=TaskPlan(name="digits", options={"root": "made-up"}), federation=federation))


@pytest.mark.parametrize("name", ["chest-xray", "fraud", "nuclei", "pose", "mnist"])
def test_every_torch_task_takes_its_root_from_what_it_scores(name: str) -> None:
    from quietsum.errors import QuietsumError
    from quietsum.tasks.registry import trainable_task

    try:
        some = {"network": "cnn"} if name in ("chest-xray", "mnist") else {}  # pixels: features take their time
        plain, task = trainable_task(name, some), trainable_task(name, {**some, "root": 40})
        public = plain._part(1) if name == "fraud" else plain._read_scored()  # type: ignore[attr-defined]
    except (QuietsumError, ImportError) as error:
        pytest.skip(str(error))
    root = task.root()  # type: ignore[attr-defined]
    rest = task._public() if name == "fraud" else split_root(public, 40)[1]  # type: ignore[attr-defined]
    assert len(root[0]) == 40 and len(rest[0]) == len(public[0]) - 40 and plain.root_size == 0  # type: ignore[attr-defined]
    assert [part.dtype for part in root] == [part.dtype for part in plain.records()]
    with pytest.raises(InvalidParameter, match="is not offered by"):
        trainable_task(name, {"root": "made-up"})


def test_a_root_set_and_the_rest_are_all_rows_once() -> None:
    torch = pytest.importorskip("torch")
    parts = (torch.arange(40.0)[:, None], torch.arange(40) % 2)
    root, rest = split_root(parts, 10)
    assert len(root[0]) == 10 and sorted([*root[0][:, 0].tolist(), *rest[0][:, 0].tolist()]) == list(range(40))
    assert root[1].sum() == 5
    masks = (torch.zeros(12, 1), torch.zeros(12, 4, 4))
    assert len(split_root(masks, 3)[0][1]) == 3


def test_a_rule_without_a_root_set_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    place = Workspace.at(tmp_path)
    with pytest.raises(PlanRefused, match=r"options = \{ root = 100 \}"):
        start(heart_plan(root=0), workspace=place)

    class Own:  # a task of one's own without a root set
        def __getattr__(self, name: str) -> object:
            if name in ("root_size", "trial"):
                raise AttributeError(name)
            return getattr(HeartTask.from_package(), name)

    plan = heart_plan(task=TaskPlan(name="mine:Own"))
    task: Any = Own()
    resolved = resolve(plan, task.parties(), task.dimension)
    with pytest.raises(PlanRefused, match="give it root_size and trial"):
        refuse_without_root(as_task(task), resolved)
    with pytest.raises(InvalidParameter, match="more than half"):
        start(heart_plan(root=200), workspace=place)
    assert not place.ledger.exists()


def test_a_round_that_has_no_trial_reserves_nothing() -> None:
    plan = heart_plan()
    task = task_of(plan)
    resolved = resolve(plan, task.parties(), task.dimension)
    from quietsum.federation.local import LocalFederation
    from quietsum.federation.round import first_state

    with pytest.raises(PlanRefused, match="this round has none"):
        run_round(
            "run", 1, first_state(resolved, task.initial()), resolved=resolved, ledger=None,  # type: ignore[arg-type]
            federation=LocalFederation.of(task, resolved), rng=system_randomness(),
        )  # fmt: skip


@pytest.mark.parametrize("root", [60, "made-up"])
def test_a_run_goes_through_and_remembers_every_site(tmp_path: Path, root: object) -> None:
    from quietsum.runs import latest_checkpoint

    result = start(heart_plan(root=root), workspace=Workspace.at(tmp_path))
    assert result.outcome == "finished" and result.metrics.values["accuracy"] > 0.5

    last = latest_checkpoint(result.folder.checkpoints)
    assert last is not None
    memory = last.state.memory
    assert set(memory) == {"merit", "evidence", "chance"} and (memory["evidence"] > 0.3).all()
    handed_on = latest_checkpoint(result.folder.checkpoints, of_parties=False)
    assert handed_on is not None and not handed_on.state.memory  # the rest is the operator's alone
