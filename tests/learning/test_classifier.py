"""PrivateClassifier keeps scikit-learn's rules where noise allows it, and bounds and classes are declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import quietsum
from quietsum.errors import BudgetExhausted, InvalidParameter, QuietsumError
from quietsum.learning import PrivateClassifier

WHY = "public: made-up rows"
CANNOT_APPLY = {
    "check_fit_idempotent": "noise is drawn anew in every fit, so a second fit gives another model",
    "check_supervised_y_2d": "it compares the predictions of two fits",
    "check_classifier_data_not_an_array": "it compares the predictions of two fits",
}
"""Checks of scikit-learn that a model with fresh noise cannot pass, and why."""


def rows(count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    return np.column_stack([50 + 20 * labels, 2 + 3 * labels]) + draw.normal(0, [10, 1], (count, 2)), labels


def make_classifier(**changes: Any) -> PrivateClassifier:
    stated: dict[str, Any] = {"epsilon": 5.0, "classes": [0, 1], "bounds": [(0, 120), (0, 10)]}
    return PrivateClassifier(**{**stated, **changes})


@pytest.mark.slow
def test_it_passes_scikit_learns_checks_but_for_those_that_noise_cannot_pass() -> None:
    found = check_estimator(
        PrivateClassifier(epsilon=50.0, epochs=2, classes=WHY, bounds=WHY), expected_failed_checks=CANNOT_APPLY
    )
    by_status: dict[str, set[str]] = {}
    for one in found:
        by_status.setdefault(one["status"], set()).add(one["check_name"])
    assert by_status["xfail"]  # Negative control: those that are listed do fail, two equal fits apart
    assert set(by_status) == {"passed", "xfail", "skipped"} and len(by_status["passed"]) > 40
    assert by_status["skipped"] <= {"check_pipeline_consistency", "check_array_api_input"}


def test_without_declared_bounds_or_classes_nothing_is_trained() -> None:
    values, y = rows()
    with pytest.raises(InvalidParameter, match="a fact about the people in them; say bounds="):
        make_classifier(bounds=None).fit(values, y)
    with pytest.raises(InvalidParameter, match="a fact about the rows; say classes="):
        make_classifier(classes=None).fit(values, y)
    for name in ("bounds", "classes"):
        for reason in ("public", "public: ", "all of them"):
            with pytest.raises(InvalidParameter, match="neither a declaration nor a reason"):
                make_classifier(**{name: reason}).fit(values, y)
    assert make_classifier(bounds=WHY, classes=WHY, epochs=1).fit(values, y).bounds_.shape == (2, 2)  # Negative control


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bounds": [(0, 1)]}, "do not fit 2 features"), ({"bounds": [(1, 0), (0, 1)]}, "empty range"),
        ({"bounds": [(0, float("inf")), (0, 1)]}, "empty range"), ({"bounds": [("a", "b")] * 2}, "no number"),
        ({"classes": [1]}, "name 1 class"), ({"classes": [1, 2]}, "none of the declared classes"),
        ({"epsilon": 0}, "epsilon"), ({"delta": 1.0}, "delta"), ({"model": "forest"}, "model"),
        ({"model": "mlp", "hidden": 0}, "hidden"), ({"epochs": 0}, "epochs"), ({"batch_size": 0}, "batch_size"),
    ],
)  # fmt: skip
def test_what_is_stated_is_checked(changes: dict[str, Any], why: str) -> None:
    with pytest.raises((InvalidParameter, QuietsumError), match=why):
        make_classifier(**changes).fit(*rows(100))


def test_the_guarantee_is_that_of_the_stated_epsilon_and_of_a_public_number_of_rows() -> None:
    fitted = make_classifier(epsilon=2.0, delta=1e-6, epochs=3).fit(*rows())
    found = fitted.guarantee_
    assert 1.9 < found.epsilon <= 2.0 and found.delta == 1e-6
    assert (str(found.unit), str(found.neighbours)) == ("record", "zero-out")


def test_a_value_is_scaled_by_its_own_row_and_clipped_to_its_bounds() -> None:
    values, y = rows(50)
    fitted = make_classifier(epsilon=50.0, epochs=1).fit(values, y)
    scaled = fitted._scale(values)
    assert (np.linalg.norm(scaled, axis=1) <= 1).all()
    other = values.copy()
    other[7] = [1e300, -1e300]
    again = fitted._scale(other)
    assert (again[np.arange(50) != 7] == scaled[np.arange(50) != 7]).all()
    assert (again[7] == fitted._scale(np.array([[120.0, 0.0]]))[0]).all()
    # Negative control: bounds that are read off the rows move the others.
    moved = make_classifier(epsilon=50.0, epochs=1, bounds=WHY).fit(other, y)._scale(other)
    assert not (moved[np.arange(50) != 7] == scaled[np.arange(50) != 7]).all()


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_it_learns_and_labels_may_be_texts(model: str) -> None:
    values, y = rows(800)
    names = np.array(["no", "yes"])[y]
    fitted = make_classifier(classes=["yes", "no"], model=model, epsilon=8.0).fit(values, names)
    test, truth = rows(400, seed=1)
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.score(test, np.array(["no", "yes"])[truth]) > 0.85
    np.testing.assert_allclose(fitted.predict_proba(test).sum(axis=1), 1)


def test_it_stands_in_a_pipeline_and_is_cloned() -> None:
    values, y = rows()
    pipe = make_pipeline(FunctionTransformer(), make_classifier(epochs=2))
    assert clone(pipe).fit(values, y).predict(values).shape == (400,)
    assert quietsum.PrivateClassifier is PrivateClassifier


def test_published_rows_are_learned_nearly_as_well_as_without_noise() -> None:
    values, y = load_breast_cancer(return_X_y=True)
    train, test, labels, truth = train_test_split(values, y, random_state=0, test_size=0.3)
    fitted = PrivateClassifier(epsilon=3.0, classes=[0, 1], bounds="public: published in 1995").fit(train, labels)
    assert fitted.score(test, truth) > 0.85


def test_with_a_workspace_two_fits_share_one_lifetime_budget(tmp_path: Any) -> None:
    values, y = rows(200)
    make_classifier(workspace=tmp_path, dataset="visits", epochs=2).fit(values, y)
    refused = pytest.raises(BudgetExhausted, match="dataset 'visits' of 'here' has a lifetime of ε = 5 per record")
    with refused as told:
        make_classifier(workspace=tmp_path, dataset="visits", epochs=2).fit(values, y)
    assert "ledger raise" in str(told.value)
    make_classifier(workspace=tmp_path, dataset="others", epochs=2).fit(values + 1, y)


def test_a_value_beyond_all_others_is_clipped_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    values, y = rows(200)
    values[3, 0], values[4, 0] = 1e308, -1.7e308
    low = make_classifier(bounds=[(-1.5e308, 120), (0, 10)], epochs=1).fit(values, y)
    high = make_classifier(bounds=[(1e308, 1.1e308), (0, 10)], epochs=1).fit(values, y)
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]
    for model in (low, high):
        assert np.isfinite(model.predict_proba(values)).all()


@pytest.mark.parametrize("name", ["clip", "learning_rate"])
def test_a_setting_of_zero_is_not_taken_for_none(name: str) -> None:
    with pytest.raises(InvalidParameter, match="must be greater than 0"):
        make_classifier(**{name: 0}).fit(*rows(100))
