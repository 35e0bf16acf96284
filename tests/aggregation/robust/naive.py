"""Rules as their papers write them, without a thought for speed or range: what the real ones are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from quietsum.aggregation.robust import Rule, Sent, Verdict
from quietsum.mechanisms.rng import RandomSource, system_randomness


def sent_of(updates: Any, attackers: int = 0, rng: RandomSource | None = None, **fields: Any) -> Sent:
    """Every registered party sent a row."""
    rows = np.asarray(updates)
    return Sent(
        updates=rows, attackers=attackers, places=np.arange(len(rows)), registered=len(rows),
        rng=rng or system_randomness(), **fields,
    )  # fmt: skip


def verdict_of(rule: Rule, updates: Any, attackers: int = 0, **fields: Any) -> Verdict:
    sent = sent_of(updates, attackers, **fields)
    if not sent.memory:
        sent = sent_of(updates, attackers, **{**fields, "memory": rule.memory(len(sent), sent.updates.shape[1])})
    return rule.combine(sent)


class Fixed:
    """A random source whose uniforms are all the same."""

    for_tests = True

    def __init__(self, value: float) -> None:
        self.value = value

    def uniforms(self, count: int) -> np.ndarray:
        return np.full(count, self.value)


def krum_order(updates: np.ndarray, attackers: int) -> np.ndarray:
    """Rows by the sum of squared distances to their n − f − 2 nearest others, in extended precision."""
    rows = updates.astype(np.longdouble)
    scores = []
    for index, row in enumerate(rows):
        squares = sorted(np.sum((row - other) ** 2) for place, other in enumerate(rows) if place != index)
        scores.append(sum(squares[: len(rows) - attackers - 2]))
    return np.argsort(np.array(scores), kind="stable")


def signguard(updates: np.ndarray, part: slice, form: str = "", last: np.ndarray | None = None) -> tuple[Any, Any]:
    """SignGuard with scikit-learn's mean shift, as the authors have it: the step and who is kept."""
    from sklearn.cluster import MeanShift, estimate_bandwidth

    norms = np.linalg.norm(updates, axis=1)
    middle = np.median(norms)
    first = {i for i, norm in enumerate(norms) if 0.1 * middle < norm < 3 * middle}
    some = np.sign(updates[:, part])
    features = np.stack([(some == sign).mean(axis=1) for sign in (1, 0, -1)], axis=1)
    for column in features.T:
        if column.max() > 0:
            column /= column.max()
    if form == "sim":
        if last is None or not last.any():
            units = updates / norms[:, None]
            n = len(units)
            cosine = np.array([np.median([units[i] @ units[j] for j in range(n) if j != i]) for i in range(n)])
        else:
            cosine = updates @ last / norms / np.linalg.norm(last)
        features = np.c_[features, np.clip(cosine, 0, np.median(cosine)) / (5 * np.median(cosine))]
    if form == "dist":
        distance = np.linalg.norm(updates - (0 if last is None else last), axis=1)
        features = np.c_[features, (distance >= 1.1 * np.median(distance)) / 5]
    bandwidth = estimate_bandwidth(features, quantile=0.5, n_samples=len(features))
    labels = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False).fit(features).labels_
    largest = np.argmax([np.sum(labels == label) for label in range(labels.max() + 1)])
    kept = sorted(first & set(np.flatnonzero(labels == largest).tolist()))
    clipped = [updates[i] * min(1, middle / norms[i]) for i in kept]
    return np.mean(clipped, axis=0), kept


def geometric_median(updates: np.ndarray, smoothing: float = 1e-6, rounds: int = 20_000) -> np.ndarray:
    """Smoothed Weiszfeld steps in the space of updates, in extended precision, from the mean."""
    rows = updates.astype(np.longdouble)
    apart = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    least = smoothing * np.median(apart, axis=1).min()
    centre = rows.mean(axis=0)
    for _ in range(rounds):
        pulls = 1 / np.maximum(least, np.sqrt(((rows - centre) ** 2).sum(axis=1)))
        before, centre = centre, (pulls[:, None] * rows).sum(axis=0) / pulls.sum()
        if np.abs(centre - before).max() < 1e-16:
            break
    return centre.astype(np.float64)


def centered_clipping(updates: np.ndarray, last: np.ndarray, iterations: int, radius: float | None) -> np.ndarray:
    centre = last.copy()
    for _ in range(iterations):
        apart = updates - centre
        norms = np.linalg.norm(apart, axis=1)
        tau = np.median(norms) if radius is None else radius
        centre = centre + np.mean([row * min(1.0, tau / norm) for row, norm in zip(apart, norms, strict=True)], axis=0)
    return centre


def norm_bounded(updates: np.ndarray, bound: float | None) -> np.ndarray:
    norms = np.linalg.norm(updates, axis=1)
    most = np.median(norms) if bound is None else bound
    return np.mean([row * min(1.0, most / norm) for row, norm in zip(updates, norms, strict=True)], axis=0)
