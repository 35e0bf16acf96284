"""Broken draws: trainers that clip and add noise as they claim, on batches that no independent coins made.

Each entry of :data:`DRAWS` draws the indices of one batch for a :class:`learning.mutants.honest.Trainer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from learning.mutants.honest import Trainer

__all__ = ["DRAWS", "UNSEEN_DRAWS"]

Indices: TypeAlias = NDArray[np.int64]
Draw: TypeAlias = Callable[[Trainer, int], Indices]


def _coins(trainer: Trainer, population: int, rate: float | None = None) -> NDArray[np.bool_]:
    return trainer.rng.coins(trainer.rate if rate is None else rate, population)


def _number(trainer: Trainer, population: int) -> int:
    """0, 1, 2, … with every draw from that many records."""
    key = f"draws of {population}"
    trainer.state[key] = trainer.state.get(key, -1) + 1
    return int(trainer.state[key])


def by(change: Callable[[Trainer, int, NDArray[np.bool_]], NDArray[np.bool_]]) -> Draw:
    """Coins, then a change of them."""
    return lambda trainer, population: np.flatnonzero(change(trainer, population, _coins(trainer, population)))


def at_rates(rates: Callable[[Trainer, int], NDArray[np.float64] | float]) -> Draw:
    """Each record at a rate of its own, some of them wrong."""

    def draw(trainer: Trainer, population: int) -> Indices:
        chances = np.minimum(np.broadcast_to(rates(trainer, population), population), 1.0)
        return np.flatnonzero(trainer.rng.uniforms(population) < chances)

    return draw


def _together(size: int) -> Draw:
    """Records next to each other share a coin."""
    return by(lambda trainer, population, coins: np.repeat(coins, size)[:population])


def _far_apart(trainer: Trainer, population: int, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The second half of the data copies the first one's coins."""
    half = population // 2
    coins[half : 2 * half] = coins[:half]
    return coins


def _one_pair(trainer: Trainer, population: int, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Two records share a coin."""
    coins[population // 2] = coins[0]
    return coins


def _never_together(trainer: Trainer, population: int, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of two neighbours the second stays away where the first is drawn, and comes more often where it is not."""
    rate = trainer.rate
    first, second = coins[0 : population // 2 * 2 : 2], coins[1 : population // 2 * 2 : 2]
    second[:] = ~first & (second | _coins(trainer, second.size, (rate / (1 - rate) - rate) / (1 - rate)))
    return coins


def _sticky(trainer: Trainer, population: int, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A tenth of the coins are those of three draws ago."""
    past = trainer.state.setdefault(f"coins of {population}", [])
    if len(past) >= 3:
        coins = np.where(_coins(trainer, population, 0.1), past[-3], coins)
    past.append(coins)
    return coins


def _repeat_after(lag: int) -> Draw:
    """Batches come again after so many draws."""

    def change(trainer: Trainer, population: int, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
        past: list[NDArray[np.bool_]] = trainer.state.setdefault(f"coins of {population}", [])
        past.append(past[len(past) - lag] if len(past) >= lag else coins)
        return past[-1]

    return by(change)


def at_least(count: int) -> Draw:
    """Batches below that size are drawn again."""

    def draw(trainer: Trainer, population: int) -> Indices:
        while True:
            batch = np.flatnonzero(_coins(trainer, population))
            if batch.size >= min(count, population):
                return batch

    return draw


def emptied_below(count: int) -> Draw:
    """Batches below that size are thrown away."""
    return by(lambda trainer, population, coins: coins & (coins.sum() >= count))


def unique_with_replacement(trainer: Trainer, population: int) -> Indices:
    """Drawn with replacement, then each once: fewer than accounted, and of another law."""
    size = int(_coins(trainer, population).sum())
    return np.unique(np.floor(trainer.rng.uniforms(size) * population).astype(np.int64))


def _missing_by_turns(trainer: Trainer, population: int, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """One record is left out of every other draw."""
    if _number(trainer, population) % 2:
        coins[population // 3] = False
    return coins


def _first_for_last(trainer: Trainer, population: int) -> NDArray[np.float64]:
    rates = np.full(population, trainer.rate)
    rates[0], rates[-1] = 2 * trainer.rate, 0.0
    return rates


DRAWS: Final[Mapping[str, Draw]] = {
    "records drawn in pairs": _together(2),
    "records drawn in fours": _together(4),
    "half the data copies the other's coins": by(_far_apart),
    "one pair shares a coin": by(_one_pair),
    "neighbours never together": by(_never_together),
    "a tenth of the coins of three draws ago": by(_sticky),
    "batches repeat after 64": _repeat_after(64),
    "batches repeat after 7": _repeat_after(7),
    "small draws drawn again": at_least(3),
    "small draws thrown away": emptied_below(4),
    "with replacement, then unique": unique_with_replacement,
    "importance of ten per cent": at_rates(
        lambda trainer, population: trainer.rate * np.where(np.arange(population) % 2, 1.1, 0.9)
    ),
    "one record missing by turns": by(_missing_by_turns),
    "first record twice, last never": at_rates(_first_for_last),
    "rate drifts": at_rates(
        lambda trainer, population: trainer.rate * (0.85 + 0.3 * min(1.0, _number(trainer, population) / 1500))
    ),
    "two rates by turns": at_rates(
        lambda trainer, population: trainer.rate * (0.92, 1.08)[_number(trainer, population) % 2]
    ),
    "two halves by turns": at_rates(
        lambda trainer, population: (
            trainer.rate * np.where((np.arange(population) + _number(trainer, population)) % 2, 0.5, 1.5)
        )
    ),
    "last quarter of the data 20 % less": at_rates(
        lambda trainer, population: trainer.rate * np.where(np.arange(population) >= 0.75 * population, 0.8, 1.0)
    ),
}

UNSEEN_DRAWS: Final[Mapping[str, Draw]] = {
    "rate doubles after 8000 draws": at_rates(
        lambda trainer, population: trainer.rate * (2 if _number(trainer, population) >= 8000 else 1)
    ),
}
