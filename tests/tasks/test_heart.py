"""The heart task: four hospitals read, checked, encoded row by row, and split by a rule that anyone can repeat."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.tasks import Rows, task_named
from quietsum.tasks.gallery import heart
from quietsum.tasks.gallery.heart import (
    COLUMNS,
    FEATURES,
    HELD_OUT_SIZES,
    TRAINING_SIZES,
    HeartTask,
    HospitalTable,
    encode,
)

SITES = tuple(TRAINING_SIZES)


def embedded_bytes() -> bytes:
    return resources.files("quietsum.tasks.data").joinpath("heart_4centers.csv").read_bytes()


def official_folder(folder: Path) -> Path:
    """UCI's four files, made from the embedded table by cutting off the first column."""
    texts: dict[str, list[str]] = {}
    for line in embedded_bytes().decode().splitlines()[1:]:
        centre, _, rest = line.partition(",")
        texts.setdefault(centre, []).append(rest + "\n")
    for centre, lines in texts.items():
        (folder / f"processed.{centre}.data").write_text("".join(lines))
    return folder


def same(left: HeartTask, right: HeartTask) -> bool:
    return all(
        np.array_equal(a[site].features, b[site].features) and np.array_equal(a[site].labels, b[site].labels)
        for a, b in (
            ({name: left.rows(name) for name in SITES}, {name: right.rows(name) for name in SITES}),
            (left._held_out, right._held_out),
        )
        for site in SITES
    )


# ------------------------------------------------------------------------------------------------------ the rows


def test_the_rows_are_flambys_740_in_its_published_sizes() -> None:
    tables = heart.read_tables()
    assert {site: len(tables[site].values) for site in SITES} == dict(zip(SITES, (303, 294, 123, 200), strict=True))
    assert [len(tables[site].complete().values) for site in SITES] == [303, 261, 46, 130]
    task = HeartTask(tables)
    assert {site: len(task.rows(site)) for site in SITES} == {party.name: party.size for party in task.parties()}
    assert {site: len(task.rows(site)) for site in SITES} == TRAINING_SIZES
    assert {site: len(task._held_out[site]) for site in SITES} == HELD_OUT_SIZES


def legacy_split(labels: np.ndarray, seed: int = 43) -> set[int]:
    """scikit-learn's rule written again: the positions held out of one centre.

    Classes share the places by their largest remainders, ties broken at random (the hypergeometric mode), then each
    class is shuffled. ``RandomState`` is frozen, so this gives the same rows for ever.
    """
    rng = np.random.RandomState(seed)
    count = len(labels)
    test, train = int(np.ceil(count * (1 - 0.66))), int(np.floor(count * 0.66))
    counts = np.bincount(labels.astype(int), minlength=2)
    if counts.min() <= 2:
        return set(rng.permutation(count)[:test].tolist())

    def mode(sizes: np.ndarray, draws: int) -> np.ndarray:
        exact = sizes / sizes.sum() * draws
        whole = np.floor(exact)
        for value in np.sort(np.unique(exact - whole))[::-1]:
            needed = int(draws - whole.sum())
            if needed == 0:
                break
            tied = np.flatnonzero(exact - whole == value)
            whole[rng.choice(tied, size=min(len(tied), needed), replace=False)] += 1
        return whole.astype(int)

    for_train = mode(counts, train)
    for_test = mode(counts - for_train, test)
    held_out: set[int] = set()
    for kind in (0, 1):
        shuffled = np.flatnonzero(labels == kind)[rng.permutation(counts[kind])]
        held_out |= set(shuffled[for_train[kind] : for_train[kind] + for_test[kind]].tolist())
    return held_out


def test_the_split_file_holds_what_flambys_rule_holds_out() -> None:
    held_out = heart.read_hold_out()
    for site, table in heart.read_tables().items():
        complete = table.complete()
        labels = complete.values[:, COLUMNS.index("num")] > 0
        assert {int(complete.numbers[position]) for position in legacy_split(labels)} == held_out[site]
        other = {int(complete.numbers[position]) for position in legacy_split(labels, seed=44)}
        assert other != held_out[site]  # another seed is another split, so the comparison can fail


def test_training_and_hold_out_share_no_row() -> None:
    held_out = heart.read_hold_out()
    for site, table in heart.read_tables().items():
        complete = set(table.complete().numbers.tolist())
        assert held_out[site] < complete
        assert len(complete) - len(held_out[site]) == TRAINING_SIZES[site]


def test_labels_are_one_for_the_ill() -> None:
    task = HeartTask.from_package()
    found: Counter[str] = Counter()
    for site in SITES:
        for rows in (task.rows(site), task._held_out[site]):
            assert set(np.unique(rows.labels)) <= {0.0, 1.0}
            found[site] += int(rows.labels.sum())
    assert found == {"cleveland": 139, "hungarian": 98, "switzerland": 45, "va": 101}


# ------------------------------------------------------------------------- public constants and row-local rules


def test_features_are_bounded_and_named() -> None:
    task = HeartTask.from_package()
    assert task.dimension == len(FEATURES) == len(set(FEATURES))
    for site in SITES:
        features = task.rows(site).features
        assert features.shape[1] == task.dimension
        assert np.isfinite(features).all()
        assert np.abs(features).max() <= 3
        assert np.linalg.norm(features, axis=1).max() < 6
        assert (features[:, FEATURES.index("bias")] == 1).all()


def test_one_patient_is_encoded_by_hand() -> None:
    values = np.array([[63.0, 1, 1, 145, 0, 1, 2, 150, 0, 2.3, 3, 0, 6, 2]])
    rows = encode(values)
    expected = {
        "age": (63 - 54) / 9,
        "trestbps": (145 - 130) / 18,
        "chol": 0.0,  # not measured
        "thalach": (150 - 140) / 25,
        "oldpeak": 1.3,
        "male": 1.0,
        "fasting_sugar_above_120": 1.0,
        "pain_on_exercise": -1.0,
        "no_chest_pain": -1.0,
        "atypical_angina": 0.0,
        "other_chest_pain": 0.0,
        "ecg_st_t_abnormal": 0.0,
        "ecg_hypertrophy": 1.0,
        "chol_not_measured": 1.0,
        "bias": 1.0,
    }
    assert dict(zip(FEATURES, rows.features[0].tolist(), strict=True)) == pytest.approx(expected)
    assert rows.labels.tolist() == [1.0]


def test_every_row_is_encoded_as_if_it_were_alone() -> None:
    for table in heart.read_tables().values():
        values = table.complete().values
        alone = np.concatenate([encode(values[row : row + 1]).features for row in range(len(values))])
        assert np.array_equal(encode(values).features, alone)


def altered(tables: dict[str, HospitalTable], site: str, row: int, wild: bool) -> dict[str, HospitalTable]:
    """The same tables with one training row made wild, or gone."""
    table = tables[site]
    values = table.values.copy()
    if wild:
        values[row] = [1e6, 0, 1, -1e6, 1e6, 1, 2, 1e6, 1, -1e6, 0, 0, 0, 1]
        return tables | {site: HospitalTable(values=values, numbers=table.numbers)}
    return tables | {site: HospitalTable(values=np.delete(values, row, 0), numbers=np.delete(table.numbers, row))}


def private_positions(tables: dict[str, HospitalTable], site: str) -> Iterator[int]:
    held_out = heart.read_hold_out()[site]
    return iter([n for n in tables[site].complete().numbers.tolist() if n not in held_out][::17])


def others_unchanged(encoder: object, site: str, row: int, tables: dict[str, HospitalTable], wild: bool) -> bool:
    """Whether the features of all other rows stay the same bits when one row changes or goes."""
    before, after = tables[site].complete(), altered(tables, site, row, wild)[site].complete()
    left, right = encoder(before.values).features, encoder(after.values).features  # type: ignore[operator]
    return np.array_equal(left[before.numbers != row], right[after.numbers != row])


@pytest.mark.parametrize("wild", [True, False])
def test_a_private_row_that_changes_or_goes_moves_no_other_row_and_no_constant(wild: bool) -> None:
    tables = heart.read_tables()
    usual = HeartTask(tables)
    for site in SITES:
        for row in private_positions(tables, site):
            assert others_unchanged(encode, site, row, tables, wild)
            task = HeartTask(altered(tables, site, row, wild))
            assert task.parties() == usual.parties()  # declared sizes, not counted ones
            assert task.dimension == usual.dimension
            assert np.array_equal(task.initial(), usual.initial())
            assert task.evaluate(np.ones(task.dimension)) == usual.evaluate(np.ones(task.dimension))
            assert len(task.rows(site)) == TRAINING_SIZES[site] - (0 if wild else 1)


def test_scaling_by_the_rows_own_mean_would_be_caught() -> None:
    def leaky(values: np.ndarray) -> Rows:
        rows = encode(values)
        return Rows(features=rows.features - rows.features.mean(axis=0), labels=rows.labels)

    tables = heart.read_tables()
    assert not others_unchanged(leaky, "va", next(private_positions(tables, "va")), tables, wild=False)


def test_a_gradient_is_the_same_bits_whatever_stands_beside_it() -> None:
    task = HeartTask.from_package()
    rows = heart.pool(task.rows(site) for site in SITES)
    rng = np.random.default_rng(5)
    for _ in range(100):
        params = rng.normal(size=task.dimension)
        some = np.flatnonzero(rng.random(len(rows)) < 0.3)
        together = task.gradients(params, rows.features, rows.labels)[some]
        assert np.array_equal(together, task.gradients(params, rows.features[some], rows.labels[some]))
        one = some[:1]
        assert np.array_equal(together[:1], task.gradients(params, rows.features[one], rows.labels[one]))


# ---------------------------------------------------------------------------------------------- the model's maths


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_gradients_are_the_derivative_of_the_loss(l2: float) -> None:
    task = HeartTask.from_package(l2=l2)
    rows = task.rows("switzerland")
    params = np.random.default_rng(1).normal(size=task.dimension)

    def losses(at: np.ndarray) -> np.ndarray:
        signs = 2 * rows.labels - 1
        return np.logaddexp(0, -signs * (rows.features @ at)) + l2 / 2 * at @ at

    found = task.gradients(params, rows.features, rows.labels)
    for index in range(task.dimension):
        step = np.zeros(task.dimension)
        step[index] = 1e-6
        slope = (losses(params + step) - losses(params - step)) / 2e-6
        assert found[:, index] == pytest.approx(slope, abs=1e-7)


def test_huge_parameters_overflow_nothing() -> None:
    task = HeartTask.from_package()
    rows = task.rows("va")
    assert np.isfinite(task.gradients(np.full(task.dimension, 1e150), rows.features, rows.labels)).all()


def test_scores_stand_on_the_published_hold_out() -> None:
    task = HeartTask.from_package()
    metrics = task.evaluate(heart.fit(heart.pool(task.rows(site) for site in SITES)))
    assert metrics.on == "254 published hold-out rows"
    sites = [metrics.values[f"accuracy_{site}"] for site in SITES]
    weights = np.array(list(HELD_OUT_SIZES.values()))
    assert metrics.values["accuracy"] == pytest.approx(np.dot(sites, weights) / weights.sum())
    assert metrics.values["accuracy_mean_of_sites"] == pytest.approx(np.mean(sites))
    assert 0.78 < metrics.values["accuracy"] < 0.86
    assert 0.85 < metrics.values["auc"] < 0.92


def test_area_under_the_curve_is_the_chance_of_the_right_order() -> None:
    rng = np.random.default_rng(3)
    labels, scores = rng.integers(0, 2, 60).astype(float), rng.integers(0, 9, 60).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    assert heart.area_under_curve(labels, scores) == pytest.approx(np.mean(pairs))
    assert np.isnan(heart.area_under_curve(np.ones(3), np.arange(3.0)))


def test_a_score_of_broken_parameters_is_refused() -> None:
    task = HeartTask.from_package()
    for broken in (np.full(task.dimension, np.nan), np.zeros(3), np.zeros((task.dimension, 1))):
        with pytest.raises(InvalidParameter, match="params"):
            task.evaluate(broken)


def test_a_run_is_compared_with_its_own_parties_only() -> None:
    task = heart.HeartTask.from_package()
    two = task.references(["hungarian", "cleveland"])
    alone = ["cleveland alone, no privacy", "hungarian alone, no privacy"]
    assert list(two) == ["their rows in one place, no privacy", *alone]
    every = task.references([party.name for party in task.parties()])
    assert len(every) == 5 and [every[name] for name in alone] == [two[name] for name in alone]


def test_reference_scores_are_the_minimum_and_the_same_every_time() -> None:
    task = HeartTask.from_package()
    first, second = heart.reference_scores(task), heart.reference_scores(task)
    assert first == second
    assert list(first) == ["pooled", *SITES]
    assert first["pooled"].values["accuracy"] > max(first[site].values["accuracy"] for site in SITES)
    rows = task.rows("cleveland")
    params = heart.fit(rows, l2=0.01)
    slope = task.gradients(params, rows.features, rows.labels).mean(axis=0) + 0.01 * params
    assert np.abs(slope).max() < 1e-10


# ------------------------------------------------------------------------------------------------------ integrity


def test_the_embedded_file_is_the_shared_one_byte_for_byte() -> None:
    shared = os.environ.get("QUIETSUM_DATA")
    if not shared:
        pytest.skip("QUIETSUM_DATA names no folder with the downloaded data")
    assert (Path(shared) / "uci_heart_4centers" / "heart_4centers.csv").read_bytes() == embedded_bytes()


def test_ucis_own_files_give_the_same_rows(tmp_path: Path) -> None:
    folder = official_folder(tmp_path)
    assert [(folder / f"processed.{site}.data").stat().st_size for site in SITES] == [18461, 10263, 4109, 6737]
    assert same(HeartTask.from_options({"path": str(folder)}), HeartTask.from_package())
    for file in folder.iterdir():  # a checkout with other line ends is the same data
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert same(HeartTask.from_options({"path": str(folder)}), HeartTask.from_package())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-200],
        lambda text: text.replace(b"63,1,4,140", b"64,1,4,140", 1),
        lambda text: b"",
        lambda text: text + b"63,1,4,140,260,0,1,112,1,3,2,?,?,2\n",
        lambda text: b"\xff" + text,
    ],
    ids=["truncated", "altered", "empty", "longer", "no text"],
)
def test_a_damaged_file_is_refused_with_the_remedy(tmp_path: Path, damage: object) -> None:
    file = official_folder(tmp_path) / "processed.va.data"
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    task = HeartTask.from_options({"path": str(tmp_path)})  # whose rows nobody has read yet
    task.rehearse_unseen()
    with pytest.raises(CorruptState, match=r"rows of va .* altered or truncated; reinstall quietsum, or fetch"):
        task.rehearse()
    with pytest.raises(CorruptState, match="rows of va"):
        task.rows("cleveland")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (official_folder(tmp_path) / "processed.hungarian.data").unlink()
    with pytest.raises(InvalidParameter, match=r"has no readable processed.hungarian.data .*leave the option out"):
        HeartTask.from_options({"path": str(tmp_path)})
    with pytest.raises(InvalidParameter, match="path"):
        HeartTask.from_options({"path": str(tmp_path / "nowhere")})


def test_a_damaged_installation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(str(resources.files("quietsum.tasks.data")))
    shutil.copytree(source, tmp_path / "data")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path / "data")
    HeartTask.from_package().rehearse()
    table, split = tmp_path / "data" / "heart_4centers.csv", tmp_path / "data" / "heart_split.csv"
    whole = table.read_bytes(), split.read_bytes()
    split.write_bytes(whole[1].replace(b"va,", b"xx,", 1))
    with pytest.raises(CorruptState, match=r"heart_split\.csv .*reinstall"):
        HeartTask.from_package().rehearse()
    split.write_bytes(whole[1])
    table.write_bytes(whole[0][:30000])
    with pytest.raises(CorruptState, match="altered or truncated"):
        HeartTask.from_package().rehearse()
    table.unlink()
    with pytest.raises(CorruptState, match="missing from the installed package; reinstall quietsum"):
        HeartTask.from_package().rehearse()


# -------------------------------------------------------------------------------------------------------- options


def test_options_teach() -> None:
    for options, lesson in (
        ({"pathh": "x"}, 'did you mean "path"'),
        ({"missing": "mean"}, "one row at a time"),
        ({"split": "random"}, "flamby"),
        ({"l2": -1}, "l2"),
        ({"l2": float("nan")}, "l2"),
        ({"path": 3}, "name a folder"),
    ):
        with pytest.raises(InvalidParameter, match=lesson):
            task_named("heart", options)
    with pytest.raises(InvalidParameter, match="choose from cleveland"):
        HeartTask.from_package().rows("zurich")


def test_rows_cannot_be_changed_and_do_not_print_themselves() -> None:
    rows = HeartTask.from_package().rows("va")
    with pytest.raises(ValueError, match="read-only"):
        rows.features[0, 0] = 0
    assert repr(rows) == "Rows(85 examples, 15 features)"
