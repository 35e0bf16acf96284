"""Scores against scikit-learn, ties and edges included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from quietsum.errors import InvalidParameter
from quietsum.tasks import Metrics
from quietsum.tasks.scores import accuracy, average_precision, best_f1_threshold, dice, f1_score, mean_auc, roc_auc


@st.composite
def labelled(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows of both classes, with few or many ties."""
    rows = draw(st.integers(2, 60))
    labels = draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows).filter(lambda found: 0 < sum(found) < rows))
    kinds = draw(st.sampled_from([3, 10, 10_000]))
    scores = draw(st.lists(st.integers(-kinds, kinds), min_size=rows, max_size=rows))
    return np.array(labels), np.array(scores) / 7


@settings(max_examples=40)  # scikit-learn takes its time
@given(labelled())
def test_ranking_scores_are_those_of_scikit_learn(rows: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
    labels, scores = rows
    assert roc_auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(labels, scores) == pytest.approx(
        metrics.average_precision_score(labels, scores), abs=1e-12
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_auc_is_that_of_scikit_learn_one_class_against_the_others(seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels, scores = draw.permutation(np.arange(60) % 4), draw.random((60, 4)).round(1)
    scores /= scores.sum(axis=1, keepdims=True)
    expected = metrics.roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    assert mean_auc(labels, scores) == pytest.approx(expected, abs=1e-12)
    assert mean_auc(labels % 2, scores[:, :2]) == roc_auc(labels % 2, scores[:, 1])


def test_classes_without_rows_leave_the_mean_auc() -> None:
    scores = np.array([[0.1, 0.9, 0.0], [0.9, 0.1, 0.0]])
    assert mean_auc([1, 0], scores) == 1.0 and math.isnan(mean_auc([1, 1], scores))


@given(labelled())
def test_the_order_of_rows_does_not_matter(rows: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
    labels, scores = rows
    turned = np.random.default_rng(0).permutation(len(labels))
    assert average_precision(labels[turned], scores[turned]) == pytest.approx(average_precision(labels, scores))
    assert best_f1_threshold(labels[turned], scores[turned]) == best_f1_threshold(labels, scores)


@settings(max_examples=40)  # scikit-learn takes its time
@given(labelled())
def test_no_threshold_has_a_better_f1_than_the_chosen_one(rows: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
    labels, scores = rows
    best = f1_score(labels, scores >= best_f1_threshold(labels, scores))
    every = [metrics.f1_score(labels, scores >= threshold) for threshold in np.unique(scores)]
    assert best == pytest.approx(max(every), abs=1e-12)


@settings(max_examples=40)  # scikit-learn takes its time
@given(labelled(), st.integers(0, 1000))
def test_f1_and_accuracy_are_those_of_scikit_learn(
    rows: tuple[NDArray[np.int64], NDArray[np.float64]], seed: int
) -> None:
    labels = rows[0]
    predicted = np.random.default_rng(seed).integers(0, 2, len(labels))
    assert f1_score(labels, predicted) == pytest.approx(metrics.f1_score(labels, predicted), abs=1e-12)
    assert accuracy(labels, predicted) == pytest.approx(metrics.accuracy_score(labels, predicted), abs=1e-12)


def test_rare_positives_among_many_rows() -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random(50_000) < 0.002).astype(np.uint8)
    scores = rng.normal(size=50_000) + 3 * labels
    assert average_precision(labels, scores) == pytest.approx(metrics.average_precision_score(labels, scores))
    assert roc_auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores))


def test_dice_of_one_image_is_its_f1_and_images_weigh_the_same() -> None:
    rng = np.random.default_rng(2)
    masks, predicted = rng.random((5, 8, 8)) < 0.3, rng.random((5, 8, 8)) < 0.5
    each = [metrics.f1_score(mask.ravel(), found.ravel()) for mask, found in zip(masks, predicted, strict=True)]
    assert dice(masks, predicted) == pytest.approx(np.mean(each))
    assert dice(masks, predicted) != pytest.approx(metrics.f1_score(masks.ravel(), predicted.ravel()), abs=1e-6)
    empty = np.zeros((1, 8, 8), dtype=np.bool_)
    assert dice(empty, empty) == 1 and dice(empty, ~empty) == 0


def test_an_undefined_score_is_left_out_of_metrics() -> None:
    assert math.isnan(roc_auc([1, 1], [0.2, 0.3])) and math.isnan(average_precision([0, 0], [0.2, 0.3]))
    assert math.isnan(f1_score([0, 0], [0, 0]))
    assert Metrics(values={"auc": roc_auc([1, 1], [0.2, 0.3])}, on="two rows").values == {}
    with pytest.raises(InvalidParameter, match="both classes"):
        best_f1_threshold([0, 0], [0.1, 0.2])


def test_bad_input_is_an_error_that_teaches() -> None:
    with pytest.raises(InvalidParameter, match="diverge"):
        roc_auc([0, 1], [math.nan, 1])
    with pytest.raises(InvalidParameter, match="diverge"):
        average_precision([0, 1], [math.inf, 1])
    with pytest.raises(InvalidParameter, match="no class here"):
        roc_auc([0, 2], [0.1, 0.2])
    with pytest.raises(InvalidParameter, match="does not fit"):
        roc_auc([0, 1], [0.1, 0.2, 0.3])
    with pytest.raises(InvalidParameter, match="no rows"):
        accuracy([], [])
    with pytest.raises(InvalidParameter, match="classes, not scores"):
        f1_score([0, 1], [0.3, 0.8])
    with pytest.raises(InvalidParameter, match="one label per row"):
        roc_auc([[0, 1]], [[0.1, 0.2]])
    with pytest.raises(InvalidParameter, match="axis of pixels"):
        dice([0, 1], [0, 1])
