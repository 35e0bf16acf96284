"""What only a site's own books can tell: what was reserved or refused before, and whether it was charged enough."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from party.asking import MODEL, RECORD, UNIT, Place, Server, body_of, hear, plan, policy, reason
from quietsum import wire
from quietsum.errors import InvalidParameter
from quietsum.ledger import Ledger
from quietsum.party import books
from quietsum.party.books import SiteBooks
from quietsum.party.policy import AllowedTask, Policy, Rules, SiteDataset, SiteName
from quietsum.party.requests import NOT_BOOKED
from quietsum.party.status import status_of
from quietsum.privacy.units import PrivacyUnit

PUBLIC = SiteDataset(name="points-north", size=120, public="made up")
STAGES = [{"rounds": 1, "noise": 0.5}, {"rounds": 3, "noise": 3.0}]


# ---------------------------------------------------------------------------------------- public, then protected


def test_data_that_was_public_has_a_gate_as_soon_as_the_policy_protects_it() -> None:
    place, server = Place(policy(record=None, dataset=PUBLIC)), Server()
    resolved = plan()
    server.enrol(place, resolved)
    assert server.train(place, resolved).kind == "update"
    whole = resolved.limits[0].epsilon
    strict = policy(record=dataclasses.replace(UNIT, epsilon=whole * 1.01, run=whole * 1.01))
    told = status_of(strict, place.ledger)
    assert any("still calls the dataset public" in warning for warning in told["warnings"])

    place.start(strict)
    assert place.ledger.public_datasets() == {}
    kinds = [server.enrol(place, resolved, f"run {number}").kind for number in range(6)]
    assert "refused" in kinds, "what was released while it was public counts"
    spent = status_of(strict, place.ledger)["budgets"][0]
    assert spent["spent_epsilon"] > 0 and spent["epsilon"] == whole * 1.01


def test_data_that_was_released_without_protection_is_never_lent_again(caplog: pytest.LogCaptureFixture) -> None:
    place, server = Place(policy(record=None, dataset=PUBLIC)), Server()
    bare = plan(privacy={"style": "none"})
    server.enrol(place, bare)
    assert server.train(place, bare).kind == "update"
    place.start(policy())
    assert reason(server.enrol(place, plan(), "second")) == NOT_BOOKED
    assert "more was spent per record" in caplog.text


def test_under_another_name_the_same_data_has_no_second_lifetime() -> None:
    """A dataset's budget is kept with the site's name; whoever bears another one would begin anew."""
    place, server, resolved = Place(), Server(), plan()
    assert server.enrol(place, resolved).kind == "enrolled"
    renamed = policy(site=SiteName(name="clinic-7"))
    with pytest.raises(InvalidParameter, match="is not the name under which the ledger keeps 'points-north'") as told:
        place.start(renamed)
    assert "be 'north' again" in str(told.value)
    with pytest.raises(InvalidParameter, match="be 'north' again"):
        SiteBooks(renamed, place.ledger).rehearse(resolved)
    place.start(policy(site=SiteName(name="clinic-7"), dataset=SiteDataset(name="other points", size=120)))
    place.start(policy())  # the control: a dataset of its own, and the old name
    assert server.train(place, resolved).kind == "update"


def test_a_budget_that_was_larger_once_does_not_shrink_behind_the_owners_back() -> None:
    place = Place()
    place.ledger.raise_budget(party="north", dataset="points-north", epsilon=99.0, delta=UNIT.delta, reason="board")
    place.ledger.declare_public(party="north", dataset="points-north", reason="published")
    with pytest.raises(InvalidParameter, match="below the present budget"):
        place.start(policy())


# --------------------------------------------------------------------------------------------- reserved, or refused


def test_a_request_that_comes_again_after_a_restart_with_a_stricter_policy_is_lost_and_not_refused() -> None:
    """The coordinator takes a charge back for a refusal; this one was paid and its update has left."""
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    content = server.write("train", body_of(resolved), MODEL)
    assert hear(place, content).kind == "update"
    place.start(policy(tasks=(AllowedTask(name="another"),)))
    assert "was answered before" in reason(hear(place, content), "lost")
    assert "does not allow task" in reason(server.train(place, resolved, 2)), "the control: a new one is refused"


def test_a_failure_after_the_reservation_is_lost_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.ledger import StoreFailed

    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    content = server.write("train", body_of(resolved), MODEL)
    honest, calls = Ledger.testimony, []

    def failing(self: Ledger) -> object:
        calls.append(len(place.reserved))
        if self is place.ledger and len(calls) == 1:
            raise StoreFailed("the disk went away for a moment")
        return honest(self)

    monkeypatch.setattr(Ledger, "testimony", failing)
    assert reason(hear(place, content), "lost")
    assert place.committed == 1 and calls[0] == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_refused_is_not_answered_later_by_no_other_process_either(restarted: bool) -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    content = server.write("train", body_of(resolved), MODEL)
    place.start(policy(tasks=(AllowedTask(name="another"),)))
    assert "does not allow task" in reason(hear(place, content))
    if restarted:
        place.start(policy())
    else:
        place.service.policy = policy()
    assert hear(place, content).kind in ("lost", "refused") and not place.task.touched
    place.start(policy())
    assert server.train(place, resolved, 1, 2).kind == "update"
    place.ledger.verify()


def test_a_message_for_another_site_is_refused_before_its_heads_are_looked_at() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    stranger = Place().ledger.testimony()
    letter = server.say(place, "train", body_of(resolved), MODEL, to="south", knows=stranger)
    assert reason(letter) == "the message is for another site"
    assert server.say(place, "hello", {}, to="").kind == "here"
    assert not place.task.touched


# ------------------------------------------------------------------------------------------------ charged enough


def test_a_site_that_paid_for_the_whole_plan_is_asked_no_more_often_than_the_plan_has_rounds_of_each_noise() -> None:
    scheduled = plan("user", federation={"rounds": 4, "spare_attempts": 0}, schedule=STAGES)
    place, server = Place(policy("user")), Server()
    assert server.enrol(place, scheduled).kind == "enrolled"
    kinds = [server.train(place, scheduled, 1, attempt).kind for attempt in (1, 2, 3)]
    assert kinds == ["update", "refused", "refused"], "round 1 is the only one with little noise"
    assert [server.train(place, scheduled, number).kind for number in (2, 3, 4)] == ["update"] * 3
    assert len(place.task.touched) == 4


@pytest.mark.parametrize(
    ("before", "after", "goes_on"), [(True, False, False), (False, True, True), (True, True, True)]
)
def test_trust_that_was_taken_back_ends_a_run_that_was_charged_by_it(
    before: bool, after: bool, goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def trusting(trust: bool) -> Policy:
        return policy("user", rules=Rules(aggregation=("noisy-sum",), trust_server_sampling=trust))

    drawn = plan(
        "user",
        federation={"rounds": 3, "spare_attempts": 0, "sampling": {"kind": "poisson", "rate": 0.5}},
    )
    place, server = Place(trusting(before)), Server()
    assert server.enrol(place, drawn).kind == "enrolled"
    assert server.train(place, drawn, 1).kind == "update"
    place.start(trusting(after))
    assert server.enrol(place, drawn).kind == ("enrolled" if goes_on else "refused")
    letter = server.train(place, drawn, 2)
    assert letter.kind == ("update" if goes_on else "refused"), letter.body
    if not goes_on:
        assert reason(letter) == NOT_BOOKED and "still trusted the server's draw" in caplog.text


def test_the_site_shows_what_the_accountant_says_of_its_whole_plan() -> None:
    """Two oracles for the figure of a status: the closed form of the Gaussian, and the plan's own forecast."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    resolved = plan("user")
    held = policy("user")
    place, server = Place(held), Server()
    server.enrol(place, resolved)
    (line,) = status_of(held, place.ledger)["budgets"]
    assert line["unit"] == PrivacyUnit.CLIENT
    assert resolved.client_noise is not None
    noise = resolved.client_noise / math.sqrt(resolved.attempts)
    limit = resolved.limit_of(PrivacyUnit.CLIENT)
    assert limit is not None
    delta = limit.delta

    def gap(epsilon: float) -> float:  # Balle, Wang 2018, Theorem 8
        half, shift = 1 / (2 * noise), epsilon * noise
        return float(norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift) - delta)

    mine = place.ledger.spending_by_party(place.ledger.runs()[0].run)
    (found,) = [guarantee for (_, unit), guarantee in mine.items() if unit is PrivacyUnit.CLIENT]
    assert np.isclose(found.epsilon, brentq(gap, 1e-6, 200.0), rtol=1e-6)


# ------------------------------------------------------------------------------------- a policy that became stricter


def test_a_client_lifetime_also_ends_runs_that_were_enrolled_while_the_data_was_public(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their rounds charge nothing per client any more, so only the book as a whole can say that it is overdrawn."""
    open_policy = policy("user", client=None, dataset=PUBLIC)
    place, server, resolved = Place(open_policy), Server(), plan("user")
    runs = [f"run {number}" for number in range(6)]
    for run in runs:
        assert server.enrol(place, resolved, run).kind == "enrolled"
    whole = resolved.limits[0].epsilon
    place.start(policy("user", client=dataclasses.replace(UNIT, epsilon=whole * 1.2, run=whole * 1.1)))
    for run in runs:
        assert reason(server.train(place, resolved, run=run)) == NOT_BOOKED
    assert caplog.text.count("more was spent per client") == len(runs)
    assert not place.task.touched


def test_a_largest_run_that_was_lowered_ends_runs_that_were_enrolled_for_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drawn = plan("user", federation={"rounds": 3, "sampling": {"kind": "poisson", "rate": 0.5}})
    place, server = Place(policy("user")), Server()
    assert server.enrol(place, drawn).kind == "enrolled"
    (book,) = place.ledger.lifetime()
    assert book.guarantee is not None
    lower = dataclasses.replace(UNIT, run=book.guarantee.epsilon * 0.9)
    assert lower.of_a_run > drawn.limits[0].epsilon, "the plan's own, amplified figure is below it"
    place.start(policy("user", client=lower))
    assert reason(server.train(place, drawn)) == NOT_BOOKED
    assert "that its policy allows for one run now" in caplog.text
    place.start(policy("user"))
    assert server.train(place, drawn, 2).kind == "update"


@pytest.mark.parametrize("style", ["hybrid"])
def test_budgets_that_were_set_halfway_are_set_at_the_next_start(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(policy(style, record=None, client=None, dataset=PUBLIC))
    server, resolved = Server(), plan(style)
    server.enrol(place, resolved)
    honest, calls = Ledger.raise_budget, []

    def dying(self: Ledger, **values: object) -> object:
        calls.append(values["unit"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(self, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "raise_budget", dying)
    with pytest.raises(KeyboardInterrupt):
        place.start(policy(style))
    monkeypatch.setattr(Ledger, "raise_budget", honest)
    assert len(place.ledger.budgets()) == 1
    place.start(policy(style))
    assert {unit for _, _, unit in place.ledger.budgets()} == {PrivacyUnit.RECORD, PrivacyUnit.CLIENT}


# ------------------------------------------------------------------------------------------------- two of one site


def test_a_refusal_of_what_another_process_has_just_reserved_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    other = Ledger.on(place.store, place.key)
    content = server.write("train", body_of(resolved), MODEL)
    first = place.service
    place.start(policy(tasks=(AllowedTask(name="another"),)))
    second = place.service
    honest = type(second)._was_reserved

    def overtaken(self: object, letter: object) -> bool:
        found = honest(self, letter)  # type: ignore[arg-type]
        assert wire.read_letter(first.answer(content), most=2**22).kind == "update"
        return found

    monkeypatch.setattr(type(second), "_was_reserved", overtaken)
    assert hear(place, content).kind == "lost"
    assert (1, 1) in other.reservations(place.ledger.runs()[0].run)


def test_a_message_that_went_astray_does_not_use_up_an_attempt() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    assert reason(server.say(place, "train", body_of(resolved), MODEL, to="south")) == "the message is for another site"
    assert server.train(place, resolved).kind == "update"


def test_a_round_that_is_made_again_is_answered_by_the_same_process() -> None:
    place, server = Place(), Server()
    resolved = plan(federation={"rounds": 4, "spare_attempts": 4})
    server.enrol(place, resolved)
    asked = [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 1)]
    assert [server.train(place, resolved, *key).kind for key in asked] == ["update"] * 6


def test_runs_of_two_relations_never_share_a_lifetime_whenever_they_were_opened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All were opened before anything was charged; the first charge settles it, as the status says."""
    record = {**RECORD, "noise_multiplier": 6.0}
    one, other = (
        plan(privacy={"style": "sample", "record": record, "neighbours": relation})
        for relation in ("add-or-remove-one", "replace-one")
    )
    place, server = Place(), Server()
    for run, resolved in (("first", one), ("second", other), ("third", one)):
        assert server.enrol(place, resolved, run).kind == "enrolled"
    assert server.train(place, one, run="first").kind == "update"
    assert reason(server.train(place, other, run="second")) == NOT_BOOKED
    assert "the two cannot be added up" in caplog.text
    assert server.train(place, one, run="third").kind == "update"  # the control
    assert place.ledger.verify().entries == place.ledger.head.sequence


# ------------------------------------------------------------------------------------------- a coordinator that spams


def test_a_refused_attempt_is_written_down_once_however_often_it_is_asked_for() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    lengths = []
    for number in range(5):  # each a letter of its own, with a newer head
        server.ledger.raise_budget(
            party="north", dataset="any", unit=PrivacyUnit.RECORD, epsilon=1.0 + number, delta=1e-3, reason="new"
        )
        body = {**body_of(resolved, plan="another"), "step": "open"}
        assert server.say(place, "secure", body, payload=b"open").kind == "refused"
        lengths.append(len(list(place.ledger.entries())))
    assert len(set(lengths)) == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_coordinator_that_makes_up_attempts_cannot_fill_the_books(
    restarted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond the limit a request is lost: what is not written down must not be taken back at the coordinator."""
    monkeypatch.setattr(books, "MOST_KEPT", 4)
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    strict = policy(tasks=(AllowedTask(name="another"),))
    place.start(strict)
    before, kinds = len(list(place.ledger.entries())), []
    for attempt in range(1, 30):
        if restarted and attempt % 3 == 0:
            place.start(strict)
        kinds.append(server.train(place, resolved, 1, attempt).kind)
    most = 4 + resolved.attempts
    assert kinds == ["refused"] * most + ["lost"] * (29 - most)
    assert len(list(place.ledger.entries())) == before + most
    if not restarted:
        assert sum("was not written down" in line for line in caplog.messages) == 1
    place.ledger.verify()
    place.start(policy())
    assert server.train(place, resolved, 2, 1).kind == "update", "the control: what is allowed is answered"


def test_a_coordinator_that_enrols_again_and_again_cannot_fill_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_KEPT", 4)
    place, server, resolved = Place(), Server(), plan()
    kinds = []
    for number in range(20):
        server.ledger.raise_budget(
            party="north", dataset="any", unit=PrivacyUnit.RECORD, epsilon=1.0 + number, delta=1e-3, reason="new"
        )
        kinds.append(server.enrol(place, resolved).kind)
    most = 4 + resolved.attempts
    assert kinds == ["enrolled"] * most + ["refused"] * (20 - most)
    length = len(list(place.ledger.entries()))
    server.enrol(place, resolved)
    assert len(list(place.ledger.entries())) == length
