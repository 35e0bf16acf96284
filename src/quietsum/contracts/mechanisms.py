"""What every central mechanism promises, as tests that anyone's mechanism can run.

The heart of it looks at nothing but outputs. A mechanism is run many times on a value and on its neighbour; from one
half of the runs the sets are chosen that tell the two apart best, on the other half their chances are counted. Where
P(S) − e^ε Q(S) exceeds δ(ε) of the stated event by five standard errors, the event is false.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import QuietsumError, UnsupportedEvent
from quietsum.mechanisms import TEST_SWITCH, RandomSource, randomness_for_tests
from quietsum.privacy import ExactAccountant, PrivacyEvent, RenyiAccountant, from_json, to_json

__all__ = ["CentralMechanism", "MechanismContract"]

_ERRORS = 5.0  # standard errors
_CELLS = 24


class CentralMechanism(Protocol):
    """A value in, a noisy one out, and the event of that."""

    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        """The noisy value; if omitted, ``rng`` is the operating system's."""
        ...

    def event(self) -> PrivacyEvent:
        """What one release costs."""
        ...


class MechanismContract:
    """The suite. A subclass says how its mechanism is made and which two values are worst neighbours.

    ``value`` and ``neighbour`` are as far apart as one unit can move them. ``runs`` is how often each is released.
    ``numbers`` is False for a mechanism whose outputs are names or indices.
    """

    value: Any = 0.0
    neighbour: Any = 1.0
    runs = 2500
    numbers = True

    def make(self) -> CentralMechanism:
        """The mechanism under test."""
        raise NotImplementedError("say in a subclass how your mechanism is made")

    # ------------------------------------------------------------------------------- words for the tests

    def look(self, output: Any) -> Any:
        """What of an output is looked at: numbers along the line between the two values, choices as they are."""
        if not self.numbers:
            return output
        line = np.asarray(self.neighbour, dtype=np.float64) - np.asarray(self.value, dtype=np.float64)
        return float((np.asarray(output, dtype=np.float64) * line).sum() / math.sqrt(float((line * line).sum())))

    def outputs(self, value: Any, seed: int, runs: int | None = None) -> list[Any]:
        """``runs`` releases of ``value`` from seeded coins."""
        mechanism = self.make()
        with _seeds(seed) as coins:
            return [mechanism.release(value, coins) for _ in range(runs or self.runs)]

    def claim(self, epsilon: float) -> float:
        """δ(ε) of the stated event, from an accountant that knows it."""
        event = self.make().event()
        for accountant in (ExactAccountant(), RenyiAccountant()):
            try:
                return accountant.compose(event).delta(epsilon=epsilon)
            except UnsupportedEvent:
                continue
        raise AssertionError(f"no accountant prices {event!r}")

    # ------------------------------------------------------------------------------- the promises

    def test_it_states_an_event_that_travels_and_is_priced(self) -> None:
        """The event survives JSON and an accountant knows its price."""
        event = self.make().event()
        assert isinstance(event, PrivacyEvent), "event() returns a privacy event"
        assert from_json(to_json(event)) == event
        assert 0 <= self.claim(1.0) <= 1

    def test_the_event_does_not_depend_on_what_was_released(self) -> None:
        """The same event before and after, for one value and its neighbour."""
        mechanism = self.make()
        before = mechanism.event()
        with _seeds(1) as coins:
            mechanism.release(self.value, coins)
            middle = mechanism.event()
            mechanism.release(self.neighbour, coins)
        assert before == middle == mechanism.event(), "an event that follows the data is data"

    def test_all_chance_comes_from_the_coins_it_is_given(self) -> None:
        """The same coins make the same release: nothing is drawn from a generator beside them."""
        first, again = (self.outputs(self.value, 3, 40) for _ in range(2))
        assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
        other = self.outputs(self.value, 4, 40)
        assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True)), "coins are used"

    def test_without_coins_it_takes_the_systems(self) -> None:
        """Seeding Python's and numpy's generators does not repeat a release."""

        def draw_seeded() -> list[Any]:
            random.seed(5)
            np.random.seed(5)  # the global generator is what a careless mechanism takes
            mechanism = self.make()
            return [mechanism.release(self.value) for _ in range(40)]

        kept, states = random.getstate(), np.random.get_state()
        try:
            first, again = draw_seeded(), draw_seeded()
        finally:
            random.setstate(kept)
            np.random.set_state(states)
        assert any(not np.array_equal(one, other) for one, other in zip(first, again, strict=True)), (
            "an attacker who knows the seed can subtract the noise"
        )

    def test_what_is_not_finite_is_refused_and_not_quoted(self) -> None:
        """NaN and infinities raise one of the house's errors, whose text holds no private number."""
        if not self.numbers:
            return
        for bad in (math.nan, math.inf, -math.inf):
            value = np.append(np.ravel(np.asarray(self.value, dtype=np.float64)), [bad, 1234567.0])
            try:
                self.make().release(value if np.ndim(self.value) else bad)
            except QuietsumError as error:
                assert "1234567" not in str(error), "an error message is a release"
            else:
                raise AssertionError("what is not finite was released")

    def test_the_set_of_outputs_does_not_tell_the_value(self) -> None:
        """Floats lie on one grid, the same for neighbours: about half of them have its finest digit set, not a few."""
        if not self.numbers:
            return
        finest = []
        for value, seed in ((self.value, 6), (self.neighbour, 7)):
            outputs = np.ravel(np.asarray(self.outputs(value, seed, 60), dtype=np.float64))
            digits = [float(each).as_integer_ratio()[1] for each in outputs]
            finest.append(max(digits))
            assert np.mean(np.array(digits, dtype=object) == max(digits)) > 0.2, "noise that lies on no grid"
        assert finest[0] == finest[1], "neighbours have different grids"

    def test_the_event_holds_for_the_two_neighbours(self) -> None:
        """No set of outputs tells the neighbours apart better than the event says."""
        ones, others = ([self.look(each) for each in self.outputs(value, seed)]
                        for value, seed in ((self.value, 8), (self.neighbour, 9)))  # fmt: skip
        cells = _cells([*ones, *others])
        half = self.runs // 2
        size = int(cells.max()) + 1
        first, second = cells[: self.runs], cells[self.runs :]
        claims = {epsilon: self.claim(epsilon) for epsilon in (0.0, 1.0)}
        for p, q in ((first, second), (second, first)):
            chosen_p, chosen_q = (np.bincount(each[:half], minlength=size) / half for each in (p, q))
            held_p, held_q = (np.bincount(each[half:], minlength=size) / (self.runs - half) for each in (p, q))
            for epsilon, most in claims.items():
                tells = chosen_p > math.exp(epsilon) * chosen_q
                here, there = float(held_p[tells].sum()), float(held_q[tells].sum())
                spread = here * (1 - here) + math.exp(2 * epsilon) * there * (1 - there)
                error = math.sqrt(spread / (self.runs - half))
                gap = here - math.exp(epsilon) * there
                assert gap <= most + _ERRORS * max(error, 1 / self.runs), (
                    f"P(S) − e^ε Q(S) = {gap:.3f} at ε = {epsilon:g}, where the event says {most:.3f}"
                )


def _cells(outputs: list[Any]) -> NDArray[np.int64]:
    """Every output's cell: numbers by quantiles of all of them, names by themselves."""
    if all(isinstance(each, float) for each in outputs):
        values = np.array(outputs)
        edges = np.unique(np.quantile(values, np.linspace(0, 1, _CELLS + 1)[1:-1]))
        return np.searchsorted(edges, values, side="right").astype(np.int64)
    places: dict[Any, int] = {}
    return np.array([places.setdefault(each, len(places)) for each in outputs], dtype=np.int64)


@contextmanager
def _seeds(seed: int) -> Iterator[RandomSource]:
    """Seeded coins, which are allowed for as long as this lasts."""
    before = os.environ.get(TEST_SWITCH)
    os.environ[TEST_SWITCH] = "1"
    try:
        yield randomness_for_tests(seed)
    finally:
        if before is None:
            del os.environ[TEST_SWITCH]
        else:
            os.environ[TEST_SWITCH] = before
