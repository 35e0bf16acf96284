"""Linking: attributes that go with the label, and people known again, against what guessing reaches."""

from __future__ import annotations

import numpy as np
import pytest

from quietsum.audit import Success, link_people, link_recordings
from quietsum.errors import InvalidParameter

RANDOM = np.random.default_rng(0)
PEOPLE, ACTIONS, TAKES = 5, 12, 3
WHO, WHAT, TAKE = (part.ravel() for part in np.meshgrid(range(PEOPLE), range(ACTIONS), range(TAKES), indexing="ij"))
HABITS, MOVES = RANDOM.normal(size=(PEOPLE, 6)), 3 * RANDOM.normal(size=(ACTIONS, 6))


def recordings(habit: float) -> np.ndarray:
    """What an action looks like, how much of the person is in it, and chance."""
    return np.asarray(MOVES[WHAT] + habit * HABITS[WHO] + 0.3 * np.random.default_rng(1).normal(size=(len(WHO), 6)))


def test_people_with_habits_are_known_again_and_people_without_are_not() -> None:
    for habit, expected in ((1.0, Success.SUCCEEDS), (0.0, Success.NOT_SEEN)):
        temporal = link_recordings(recordings(habit), WHO, WHAT, TAKE == 0)
        subject = link_people(recordings(habit), WHO, WHAT)
        assert temporal.conclusion is subject.conclusion is expected
        assert temporal.chance == pytest.approx(1 / PEOPLE) and subject.chance == pytest.approx(1 / PEOPLE)
        assert temporal.trials == PEOPLE * ACTIONS * 2 and subject.trials == len(WHO)


def test_linking_by_hand_gives_the_same() -> None:
    rows = recordings(0.4)
    right = 0
    for probe in np.flatnonzero(TAKE > 0):
        same = [at for at in range(len(rows)) if TAKE[at] == 0 and WHAT[at] == WHAT[probe]]
        right += WHO[min(same, key=lambda at: float(((rows[at] - rows[probe]) ** 2).sum()))] == WHO[probe]
    assert link_recordings(rows, WHO, WHAT, TAKE == 0).successes == right


def test_an_action_tells_nothing_of_a_person_by_itself() -> None:
    """Everybody has favourite actions; those are taken away before people are compared."""
    only = (WHAT % PEOPLE) == WHO
    rows = MOVES[WHAT] + 0.3 * np.random.default_rng(2).normal(size=(len(WHO), 6))
    with pytest.raises(InvalidParameter, match="nothing to link"):
        link_recordings(rows[only], WHO[only], WHAT[only], TAKE[only] == 0)
    assert link_people(rows, WHO, WHAT).conclusion is not Success.SUCCEEDS


@pytest.mark.parametrize("rows", [np.zeros(5), np.full((5, 2), np.nan), np.zeros((4, 2)), np.zeros((0, 2))])
def test_outputs_that_fit_nothing_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(InvalidParameter):
        link_people(rows, np.arange(5), np.arange(5))


def test_an_attribute_that_goes_with_the_label_is_guessed_for_people_who_never_trained() -> None:
    torch = pytest.importorskip("torch")
    from quietsum.audit import attack_attribute
    from quietsum.learning import cross_entropy

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (900,), generator=generator)
    inputs = torch.randn(900, 4, generator=generator)
    inputs[:, 1] += 1.5 * (2 * labels - 1)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    search = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        search.zero_grad()
        cross_entropy(model, (inputs[:300], labels[:300])).mean().backward()
        search.step()
    others = (inputs[300:600], labels[300:600])
    told = attack_attribute(model, cross_entropy, others, 1, public=inputs[600:])
    assert told.conclusion is Success.SUCCEEDS and told.share > 0.8
    silent = attack_attribute(model, cross_entropy, others, 3, public=inputs[600:])
    assert silent.conclusion is Success.NOT_SEEN
    with pytest.raises(InvalidParameter, match="column"):
        attack_attribute(model, cross_entropy, others, 4, public=inputs[600:])
    with pytest.raises(InvalidParameter, match="nothing to guess"):
        flat = inputs.clone()
        flat[:, 2] = 1.0
        attack_attribute(model, cross_entropy, (flat[300:600], labels[300:600]), 2, public=flat[600:])
