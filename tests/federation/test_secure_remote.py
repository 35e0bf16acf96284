"""Secure rounds with sites that keep books of their own: letters of a new kind, the same order, the same silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.sites import places_for
from federation.world import NAMES, UNIT, World, kind_of
from quietsum import failpoints, wire
from quietsum.errors import TooFewParties
from quietsum.federation.messages import QUESTIONS
from quietsum.federation.watch import PartyDropped, PartySilent
from quietsum.ledger.chain.entries import Kind
from quietsum.party.policy import Rules
from quietsum.party.secure import contribution_of
from quietsum.plan import load_plan

PLAN = """
[task]
name = "heart"
[federation]
rounds = 3
spare_attempts = 4
deadline = 20.0
[training]
sample_rate = 0.2
local_steps = 1
[privacy]
style = "sample"
record = { noise_multiplier = 3.0, delta = 1e-4, noise_at = "distributed" }
[aggregation]
secure = true
drop_outs = 0.25
"""
CLIENTS = (
    PLAN[: PLAN.index("[privacy]")]
    + """
[privacy]
style = "user"
neighbours = "zero-out"
client = { noise_multiplier = 8.0, delta = 1e-4, max_norm = 1.0, noise_at = "distributed" }
[aggregation]
secure = true
drop_outs = 0.25
"""
)
RULES = Rules(aggregation=("mean", "distributed-noise"))
LAST = NAMES[-1]
STEPS = [step.name.lower() for step in QUESTIONS]


def world(folder: Path, text: str = PLAN, *, rules: Rules = RULES, **options: Any) -> World:
    plan = load_plan(text)
    units = {"record": UNIT if "record =" in text else None, "client": UNIT if "client =" in text else None}
    places = places_for(plan, folder, rules=rules, **units)
    return World(folder, text, places=places, **options)


def told(made: World) -> dict[str, Any]:
    return {event.party: event for event in made.events if isinstance(event, PartyDropped | PartySilent)}


def steps_sent(made: World, name: str = "") -> list[str]:
    letters = [
        wire.read_letter(content, most=2**26)
        for node, content in made.carrier.sent
        if not name or node == f"node-{name}"
    ]
    return [letter.body["step"] for letter in letters if letter.kind == "secure"]


# -------------------------------------------------------------------------------------------------- a quiet round


@pytest.mark.parametrize(
    "text",
    [PLAN, CLIENTS, CLIENTS + "bits = 20\n", PLAN + 'adversary = "semi-malicious"\n'],
    ids=["records", "clients", "clients, 20 bits", "records, a server that may lie"],
)
def test_a_round_over_letters_opens_one_sum_and_both_books_are_charged_alike(tmp_path: Path, text: str) -> None:
    made = world(tmp_path, text).join()
    for number in (1, 2):
        assert set(made.round(number).kept) == set(NAMES) and not told(made)
    assert steps_sent(made, LAST) == 2 * STEPS
    ours = {one.epsilon for one in made.ledger.spending("run")}
    for name in NAMES:
        assert len(made.entries(Kind.RESERVE, name)) == len(made.entries(Kind.COMMIT, name)) == 2
        theirs = {
            one.epsilon
            for one in made.services[name].books.ledger.spending(made.services[name].books.ledger.runs()[0].run)
        }
        assert theirs == ours


def test_the_step_is_that_of_the_pooled_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.mechanisms.distributed import DistributedNoise

    monkeypatch.setattr(DistributedNoise, "share", DistributedNoise.round_to_grid)
    made = world(tmp_path, PLAN.replace("sample_rate = 0.2", "sample_rate = 1.0")).join()
    start, task = made.state.params.copy(), made.task.task  # type: ignore[attr-defined]  # inside the adapter
    made.round()
    total, batch = np.zeros(task.dimension), 0.0
    for name in NAMES:
        rows = task.rows(name)
        gradients = task.gradients(start, rows.features, rows.labels)
        lengths = np.maximum(np.linalg.norm(gradients, axis=1), 1e-12)
        total += (gradients * np.minimum(1.0, 1 / lengths)[:, None]).sum(axis=0)
        batch += made.resolved.batch_of(name)
    np.testing.assert_allclose(made.state.params - start, -0.5 * total / batch, atol=1e-4)
    assert np.abs(total / batch).max() > 0.05


def test_the_model_travels_with_the_step_that_asks_for_inputs_and_no_vector_comes_back(tmp_path: Path) -> None:
    made = world(tmp_path).join()
    replies: list[wire.Letter] = []

    def keep(node: str, content: bytes) -> bytes:
        replies.append(wire.read_letter(content, most=2**26))
        return content

    made.carrier.spoil = keep
    made.round()
    sent = [wire.read_letter(content, most=2**26) for _, content in made.carrier.sent]
    assert {letter.body["step"] for letter in sent if letter.kind == "secure" and letter.vector is not None} == {
        "shares"
    }
    assert not [letter for letter in replies if letter.vector is not None]
    assert {letter.kind for letter in replies} <= {"here", "secured", "enrolled"}


def test_a_site_never_answers_a_request_for_its_update_where_the_plan_asks_for_masks(tmp_path: Path) -> None:
    made = world(tmp_path).join()
    sites = made.sites
    body = {"run": "run", "round": 1, "attempt": 1, "plan": made.plan.digest}
    sites.post("train", body, LAST, lasting=5.0, vector=made.state.params)
    replies = [wire.read_letter(arrival.content, most=2**26) for arrival in made.carrier.receive(0.1)]
    assert [(letter.kind, letter.body["reason"]) for letter in replies] == [
        ("refused", "the plan asks for secure aggregation, so no update leaves this site unmasked")
    ]


# ------------------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize("step", STEPS)
def test_a_site_whose_answers_are_lost_at_a_step_costs_at_most_its_own_vector(tmp_path: Path, step: str) -> None:
    made = world(tmp_path).join()

    def spoil(node: str, content: bytes) -> bytes | None:
        letter = wire.read_letter(content, most=2**26)
        lost = node == f"node-{LAST}" and letter.kind == "secured" and letter.body["step"] == step
        return None if lost else content

    made.carrier.spoil = spoil
    found = made.round()
    event = told(made)[LAST]
    assert "it had not replied within" in event.reason and event.code == "no-answer"
    assert (LAST in found.kept) == (step in ("survivors", "agreed"))
    assert len(made.entries(Kind.COMMIT)) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_site_that_is_started_anew_between_two_steps_is_lost_and_pays_for_what_it_touched(
    tmp_path: Path, step: str
) -> None:
    made = world(tmp_path).join()
    done: list[str] = []

    def before(look: int) -> None:
        if step in steps_sent(made, LAST) and not done:
            done.append(step)
            made.restart(LAST)

    made.carrier.before = before
    found = made.round()
    event = told(made).get(LAST)
    if step == "open":  # nothing had left the first process: the second one begins the session
        assert event is None and LAST in found.kept
    else:
        assert event is not None and (LAST in found.kept) == (step in ("survivors", "agreed"))
    touched = step in ("survivors", "agreed", "open")
    assert len(made.entries(Kind.RESERVE, LAST)) == touched
    made.carrier.before = lambda look: None
    assert set(made.round(2).kept) == set(NAMES)  # its identity is that of its ledger, and survived


def test_a_question_that_went_astray_is_asked_again_and_answered_with_the_same_bytes(tmp_path: Path) -> None:
    made = world(tmp_path).join()
    lost: set[str] = set()
    arrived = made.carrier.receive
    payloads: dict[str, set[bytes]] = {}

    def flaky(wait: float) -> Any:
        from quietsum.federation.remote.transport import Arrival

        found = []
        for arrival in arrived(wait):
            letter = wire.read_letter(arrival.content, most=2**26)
            step = letter.body.get("step", "")
            if letter.kind == "secured" and letter.sender.ledger == ledger:
                payloads.setdefault(step, set()).add(letter.payload)
                if step not in lost:
                    lost.add(step)
                    found.append(Arrival(message=arrival.message, problem="the line broke"))
                    continue
            found.append(arrival)
        return found

    ledger = made.services[LAST].books.ledger.identity.ledger
    made.carrier.receive = flaky  # type: ignore[method-assign]
    assert set(made.round().kept) == set(NAMES) and lost == set(STEPS)
    assert all(len(same) == 1 for same in payloads.values())
    assert len(made.entries(Kind.RESERVE, LAST)) == 1


def test_too_few_sites_are_exit_code_6_and_a_retry_is_charged_again(tmp_path: Path) -> None:
    made = world(tmp_path).join()

    def spoil(node: str, content: bytes) -> bytes | None:
        letter = wire.read_letter(content, most=2**26)
        return None if node in ("node-va", "node-hungarian") and letter.body.get("step") == "shares" else content

    made.carrier.spoil = spoil
    with pytest.raises(TooFewParties, match="too few parties sent their masked vectors") as error:
        made.round()
    assert error.value.exit_code == 6
    once = max(one.epsilon for one in made.ledger.spending("run"))
    made.carrier.spoil = lambda node, content: content
    assert set(made.round().kept) == set(NAMES)
    assert min(one.epsilon for one in made.ledger.spending("run")) > once
    for name in NAMES:
        assert len(made.entries(Kind.COMMIT, name)) == 2


def test_a_site_that_has_never_come_is_counted_as_lost_and_joins_when_it_comes(tmp_path: Path) -> None:
    made = world(tmp_path, start=NAMES[:3]).join()
    assert set(made.round(1).kept) == set(NAMES[:3])
    assert told(made)[LAST].reason == "it has not come to this run"
    made.services[LAST] = made.places[LAST].start()
    made.carrier.sites[f"node-{LAST}"] = made.answers(LAST)
    made.round(2)
    assert set(made.round(3).kept) == set(NAMES)


# ------------------------------------------------------------------------------------------- what a site insists on


def test_a_site_refuses_a_plan_below_its_smallest_cohort_and_threshold_before_anything(tmp_path: Path) -> None:
    for rules in (
        dataclasses.replace(RULES, smallest_cohort=4),
        dataclasses.replace(RULES, smallest_threshold=4),
        dataclasses.replace(RULES, adversary="semi-malicious"),
    ):
        with pytest.raises(TooFewParties, match="0 of 4 sites take part"):
            world(tmp_path / repr(rules)[-40:-20], rules=rules).join()


def test_a_plan_that_shows_single_updates_is_refused_where_masks_are_required(tmp_path: Path) -> None:
    plain = PLAN.replace("secure = true\ndrop_outs = 0.25", "").replace(', noise_at = "distributed"', "")
    with pytest.raises(TooFewParties, match="secure aggregation is required"):
        world(tmp_path, plain, rules=dataclasses.replace(RULES, secure="required")).join()


def replaced(made: World, change: Callable[[dict[str, Any]], None], name: str = LAST) -> None:
    """The coordinator tells ``name`` something else in its first question, under its own signature."""
    sites = made.sites
    post = sites.post

    def lie(kind: str, body: Any, party: str = "", **options: Any) -> None:
        if kind == "secure" and party == name and body.get("step") == "open":
            body = {**body, "peers": dict(body["peers"])}
            change(body)
        post(kind, body, party, **options)

    sites.post = lie  # type: ignore[method-assign]


def test_a_peer_with_another_ledger_than_before_is_refused_by_name(tmp_path: Path) -> None:
    made = world(tmp_path).join()
    made.round(1)
    from quietsum.ledger import Ledger
    from quietsum.party.peers import certificate, identity_of

    with Ledger.open(tmp_path / "stranger.db", create=True) as stranger:
        forged = certificate(stranger, stranger.identity.public_key, NAMES[0], identity_of(stranger))
    replaced(made, lambda body: body["peers"].update({NAMES[0]: forged}))
    found = made.round(2)
    assert LAST not in found.kept and "has another ledger" in told(made)[LAST].reason
    assert told(made)[LAST].refunded and not made.entries(Kind.RESERVE, LAST)[1:]


def test_a_pinned_peer_must_have_the_ledger_that_the_policy_names(tmp_path: Path) -> None:
    plan = load_plan(PLAN)
    places = places_for(plan, tmp_path, rules=RULES, record=UNIT)
    pinned = dataclasses.replace(RULES, peers={NAMES[0]: "0" * 32})
    places[LAST].policy = dataclasses.replace(places[LAST].policy, rules=pinned)
    made = World(tmp_path, PLAN, places=places).join()
    assert LAST not in made.round().kept and "than the one this site knows (00000000" in told(made)[LAST].reason
    right = made.services[NAMES[0]].books.ledger.identity.ledger
    places[LAST].policy = dataclasses.replace(
        places[LAST].policy, rules=dataclasses.replace(RULES, peers={NAMES[0]: right})
    )
    made.restart(LAST)
    made.round(2)
    assert LAST in made.round(3).kept


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body["peers"].pop(NAMES[0]), "the cohort"),
        (lambda body: body["peers"].update({NAMES[0]: None}), "the cohort"),
        (lambda body: body["peers"].update({NAMES[0]: body["peers"][NAMES[1]]}), "certificate"),
        (lambda body: body["peers"].update({LAST: None}), "said not to have come"),
        (lambda body: body.update(peers=3), "no list of certificates"),
        (lambda body: body.update(model="0" * 64), "model"),
        (lambda body: body.update(server="0" * 64), "signature"),
        (lambda body: body.update(model="x"), "names no model"),
    ],
    ids=["one missing", "one away", "one twice", "itself away", "nonsense", "other model", "other server", "no model"],
)  # fmt: skip
def test_a_coordinator_that_lies_in_its_first_question_gets_no_vector(tmp_path: Path, change: Any, reason: str) -> None:
    made = world(tmp_path).join()
    replaced(made, change)
    found = made.round()
    assert LAST not in found.kept and reason in told(made)[LAST].reason
    assert not made.entries(Kind.RESERVE, LAST)


def test_another_model_at_the_step_of_inputs_touches_nothing(tmp_path: Path) -> None:
    made = world(tmp_path).join()
    sites = made.sites
    post = sites.post

    def lie(kind: str, body: Any, party: str = "", **options: Any) -> None:
        if party == LAST and options.get("vector") is not None:
            options["vector"] = options["vector"] + 1.0
        post(kind, body, party, **options)

    sites.post = lie  # type: ignore[method-assign]
    assert LAST not in made.round().kept and "not the one of this session" in told(made)[LAST].reason
    assert not told(made)[LAST].refunded and not made.entries(Kind.RESERVE, LAST)


# --------------------------------------------------------------------------------------------------- the order


def test_at_a_site_the_charge_is_reserved_before_data_and_committed_before_the_masked_vector(tmp_path: Path) -> None:
    made, places = world(tmp_path).join(), list[str]()
    failpoints.install(places.append)
    try:
        made.round()
    finally:
        failpoints.install(None)
    wanted = ["party:before-reserve", "party:reserved", "party:before-data", "party:before-send", "party:before-commit",
              "party:committed", "party:before-reply"]  # fmt: skip
    mine = [place for place in places if place in wanted]
    assert mine == 4 * wanted
    first, commit = places.index("round:before-commit"), places.index("round:committed")
    assert places.index("party:before-reply") < first < commit < places.index("secure:survivors")
    assert places.index("party:survivors") > commit and kind_of(made.carrier.sent[-1][1]) == "secure"


def test_no_letter_of_a_site_holds_its_vector_on_any_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.party.work import Site

    vectors: list[np.ndarray] = []
    inner = Site.contribution

    def noted(self: Site, *args: Any) -> Any:
        vectors.append(inner(self, *args))
        return vectors[-1]

    monkeypatch.setattr(Site, "contribution", noted)
    made = world(tmp_path).join()
    kept: list[bytes] = []

    def keep(_: str, content: bytes) -> bytes:
        kept.append(content)
        return content

    made.carrier.spoil = keep
    made.round()
    everything = b"".join([*kept, *(content for _, content in made.carrier.sent)])
    assert len(vectors) == 4
    for vector in vectors:
        floats = contribution_of(made.resolved, 1).noise.decode(vector.view(np.int32).astype(np.int64))  # type: ignore[attr-defined]
        for pattern in (vector.tobytes(), vector.view(np.int32).astype(np.int64).tobytes(), floats.tobytes()):
            assert pattern not in everything


# -------------------------------------------------------------------------------------- rows that do not fit


def test_in_a_masked_sum_a_site_whose_rows_do_not_fit_its_schema_is_like_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its part is that of no rows, with its share of the noise; letters have the same kinds, keys and lengths."""
    from quietsum.party.policy import SiteData

    columns = ", ".join(f'{{ name = "x.{place}" }}' for place in range(1, 15))
    lengths: dict[bool, list[tuple[str, list[str], int]]] = {}
    for fits in (True, False):
        bound = "min = -10, max = 10" if fits else "min = 7, max = 10"
        schema = tmp_path / f"{fits}.toml"
        schema.write_text(
            f'columns = [{{ name = "x.0", {bound} }}, {columns}, {{ name = "label" }}]\n[rows]\nduplicates = 1.0\n'
        )
        plan, folder = load_plan(PLAN), tmp_path / str(fits)
        places = places_for(plan, folder, rules=RULES, record=UNIT)
        place = places[LAST]
        places[LAST] = dataclasses.replace(
            place, policy=dataclasses.replace(place.policy, data=SiteData(schema=str(schema)))
        )
        made, sent = World(folder, PLAN, places=places).join(), list[tuple[str, list[str], int]]()

        def keep(node: str, content: bytes, sent: list[tuple[str, list[str], int]] = sent) -> bytes:
            if node == f"node-{LAST}":
                letter = wire.read_letter(content, most=2**26)
                sent.append((letter.kind, sorted(letter.body), len(content)))
            return content

        made.carrier.spoil = keep
        for number in (1, 2):
            assert set(made.round(number).kept) == set(NAMES) and not told(made)
        assert ("does not fit its schema: range in x.0" in caplog.text) == (not fits)
        lengths[fits] = sent
    assert lengths[True] == lengths[False] and {kind for kind, _, _ in lengths[True]} == {"secured"}
