"""What keeps a site from serving is named by ``party check``, all at once and without writing; ``serve`` agrees."""

from __future__ import annotations

import datetime
import json
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from party.asking import FACTS, Server, Watched, plan as plan_for_points
from quietsum import wire
from quietsum.cli.sites.check import hold_place
from quietsum.errors import QuietsumError
from quietsum.identity.certificates import Credentials, make_authority, make_client
from quietsum.identity.nodekeys import generate_key, read_node_key
from quietsum.ledger import Ledger
from quietsum.party.books import write_resolved
from quietsum.party.policy import CoordinatorAddress
from quietsum.party.policy_file import load_policy
from quietsum.party.service import SiteService
from scenes import quietsum

FIRST, SECOND = "a" * 32, "b" * 32


def said(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).split())


def change(policy: Path, *pairs: tuple[str, str]) -> None:
    text = policy.read_text(encoding="utf-8")
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    policy.write_text(text, encoding="utf-8")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy with its key and certificate; where the site serves, its connection ends at once."""
    pytest.importorskip("flwr")
    monkeypatch.setattr("quietsum.federation.flower.node.serve_node", lambda answer, **how: None)
    monkeypatch.setattr("signal.signal", lambda *how: None)
    quietsum("keys", "make", tmp_path / "keys", "--party", "north")
    for name in ("node.key", "ca.crt"):
        (tmp_path / "keys" / "north" / name).rename(tmp_path / name)
    path = tmp_path / "policy.toml"
    quietsum("party", "new", path, "--name", "north", "--dataset", "points-north", "--size", "120")
    return path


LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def certify(path: Path, authority: Credentials, *, name: str = "north", key: Any = None, now: Any = None) -> None:
    """A certificate beside the node key."""
    own = key or read_node_key(path.with_name("node.key")).public_key()
    path.with_name("node.crt").write_bytes(make_client(authority, name, own, now=now))


SERVED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no node key": (lambda path: path.with_name("node.key").unlink(), "node.key' is not there; make one with"),
    "a key for all to read": (lambda path: path.with_name("node.key").chmod(0o644), "chmod 600"),
    "no certificate": (lambda path: path.with_name("ca.crt").unlink(), "ca.crt' is not there; take ca.crt from"),
    "a certificate that is none": (lambda path: path.with_name("ca.crt").write_text("-"), "no whole PEM certificate"),
    "an authority of the past": (
        lambda path: path.with_name("ca.crt").write_bytes(make_authority(days=1, now=LONG_AGO).certificate),
        "has expired on 2020-01-02: no coordinator would be believed",
    ),
    "a certificate of another key": (
        lambda path: certify(path, make_authority(), key=generate_key().public_key()),
        "is no certificate that could be shown: it is for another key than the node key beside it; take node.crt anew",
    ),
    "a certificate of the past": (
        lambda path: certify(path, make_authority(days=1, now=LONG_AGO), now=LONG_AGO), "it has expired on 2020-01-02",
    ),
    "a node certificate that is none": (lambda path: path.with_name("node.crt").write_text("-"), "no whole PEM"),
    "the ledger is a folder": (lambda path: change(path, ('"ledger.db"', '"."')), "is a folder; name the file in it"),
    "a folder that is not there": (
        lambda path: change(path, ('"ledger.db"', '"nope/ledger.db"')),
        "lies in a folder that is not there; mend the path, or make the folder",
    ),
    "an address that is a URL": (
        lambda path: change(path, ('"fl.example.org:9092"', '"https://127.0.0.1:29092"')),
        "is a URL; write \"server.example.org:9092\": host:port, without https://",
    ),
}  # fmt: skip
TASKS: dict[str, tuple[str, str]] = {
    "a task that nobody knows": ('"hart"', 'did you mean "heart"?'),
    "a module that is not there": ('"nomod:T"', "cannot be imported (No module named 'nomod')"),
    "a class that is not there": ('"tiny:Nothing"', "cannot be imported"),
    "options that do not fit": ('"heart"\nhere = { colour = "red" }', "colour"),
}


@pytest.mark.parametrize("case", SERVED)
def test_what_serving_refuses_checking_finds_and_neither_leaves_anything_behind(policy: Path, case: str) -> None:
    spoil, told = SERVED[case]
    quietsum("party", "check", policy)  # the control
    spoil(policy)
    before = files(policy.parent)
    assert told in said(quietsum("party", "check", policy, code=2))
    assert told in said(quietsum("party", "serve", "--policy", policy, code=2))
    assert files(policy.parent) == before and not (policy.parent / "nope").exists()


def test_a_certificate_that_ends_soon_or_names_another_holder_is_pointed_out(policy: Path) -> None:
    certify(policy, make_authority(), name="south")
    told = said(quietsum("party", "check", policy))
    assert "node.crt calls its holder south, and this site is north" in told and "expires" not in told
    certify(policy, make_authority(days=9))
    told = said(quietsum("party", "check", policy))
    assert "node.crt expires on" in told and "calls its holder" not in told


@pytest.mark.parametrize("case", TASKS)
def test_a_task_that_cannot_be_made_here_is_found_before_a_plan_names_it(policy: Path, case: str) -> None:
    task, told = TASKS[case]
    change(policy, ('"heart"', task))
    before = files(policy.parent)
    assert told in said(quietsum("party", "check", policy, code=2))
    assert files(policy.parent) == before


def test_files_that_are_not_there_are_told_to_the_holder(policy: Path) -> None:
    pytest.importorskip("torch")
    change(policy, ('"heart"', '"pose"\nhere = { folder = "nowhere" }'))
    assert "task pose would be refused, since it has no data here" in said(quietsum("party", "check", policy))


def test_every_mistake_has_a_line_of_its_own(policy: Path) -> None:
    policy.with_name("node.key").unlink()
    policy.with_name("ca.crt").unlink()
    change(policy, ('"heart"', '"hart"'), ('"ledger.db"', '"nope/ledger.db"'))
    result = quietsum("party", "check", policy, code=2)
    assert result.stderr.count("error: ") == 4 and "next:" not in result.stdout
    assert "north: dataset points-north, 120 records" in result.stdout, "it is read back all the same"
    values = json.loads(quietsum("party", "check", policy, "--json", code=2).stdout)
    assert len(values["problems"]) == 4 and values["refused"] == ""
    assert values["budgets"] == [{"unit": "record", "epsilon": 8.0, "delta": 1e-5}]


def test_a_trial_without_tls_may_lack_a_certificate_and_no_other_site_may(policy: Path) -> None:
    change(policy, ('root_certificate = "ca.crt"', ""))
    assert "root_certificate = '' is missing" in said(quietsum("party", "check", policy, code=2))
    change(policy, ("fl.example.org", "127.0.0.1"))
    told = said(quietsum("party", "check", policy))
    assert "only --insecure-loopback serves it" in told and told.endswith("--insecure-loopback")


def test_who_begins_a_ledger_is_told_so_once(policy: Path) -> None:
    place = policy.with_name("ledger.db")
    assert f"there is no ledger yet; quietsum party serve begins one at {place}" in said(
        quietsum("party", "check", policy)
    )
    begun = f"a new ledger was begun at {place}"
    assert begun in said(quietsum("party", "serve", "--policy", policy))
    assert begun not in said(quietsum("party", "serve", "--policy", policy)), "the control: it is there"
    assert "no ledger yet" not in said(quietsum("party", "check", policy))


# -------------------------------------------------------------------------------- the policy and the ledger


def taken(policy: Path, *, run: str = "first", server: Server | None = None) -> str:
    """The kind of the site's answer to a plan, from a site that is started for it and ended again."""
    resolved = plan_for_points()
    with Ledger.open(policy.with_name("ledger.db"), create=True) as ledger:
        service = SiteService(load_policy(policy), ledger, task=lambda _: Watched())
        body = {"run": run, "resolved": write_resolved(resolved)}
        return wire.read_letter(service.answer((server or Server()).write("enrol", body)), most=2**22).kind


@pytest.fixture
def points(policy: Path) -> Path:
    """A policy for the plan of :mod:`party.asking`. No site can make its task, and ``check`` says so each time."""
    assert FACTS[0].dataset == "points-north"
    change(policy, ('"heart"', '"points"'), ("delta = 1e-5", "delta = 1e-3"))
    return policy


def test_the_figure_that_counts_is_printed_and_both_where_they_differ(points: Path) -> None:
    assert taken(points) == "enrolled"
    assert "ε ≤ 8 over all runs" in quietsum("party", "check", points, code=2).stdout
    change(points, ("epsilon = 8.0", "epsilon = 9.5"))
    for words in (("check", points), ("status", "--policy", points), ("serve", "--policy", points)):
        result = quietsum("party", *words, code=2 if words[0] == "check" else 0)
        told = " ".join(result.stdout.split())
        assert "per record: ε ≤ 8 over all runs at δ = 0.001, ≤ 3 in one by the ledger, which counts" in told
        assert "the policy says ε ≤ 9.5 per record at δ = 0.001" in told
        assert max(map(len, result.stdout.partition("ledger yet")[0].partition("next:")[0].splitlines())) <= 80
    values = json.loads(quietsum("party", "check", points, "--json", code=2).stdout)
    assert values["budgets"] == [{"unit": "record", "epsilon": 8.0, "delta": 1e-3}]
    change(points, ("epsilon = 9.5", "epsilon = 8.0"))
    assert "by the ledger" not in quietsum("party", "check", points, code=2).stdout, "the control: they agree"


def test_a_policy_that_no_plan_would_pass_is_found_by_looking_with_the_way_out(points: Path) -> None:
    assert taken(points) == "enrolled"
    change(points, ("epsilon = 8.0", "epsilon = 7.5"))
    told = said(quietsum("party", "check", points, code=2))
    assert "set epsilon = 8.0 or more and delta = 0.001 under [record] in the policy and serve again" in told
    assert taken(points, run="second") == "refused"
    change(points, ("epsilon = 7.5", "epsilon = 8.0"))
    assert taken(points) == "refused", "another coordinator than the first"
    change(points, ('name = "north"', 'name = "clinic-7"'))
    assert "be 'north' again" in said(quietsum("party", "check", points, code=2))
    assert "be 'north' again" in said(quietsum("party", "serve", "--policy", points, code=2))


def test_the_sites_log_names_both_acts_that_allow_more_and_they_do(
    points: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="quietsum")
    cost = plan_for_points().limits[0].epsilon
    change(points, ("epsilon = 8.0", f"epsilon = {1.01 * cost}"), ("run = 3.0 ", "# "))
    server = Server()
    assert taken(points, server=server) == "enrolled"
    # the first plan is charged in full, so that the second does not fit
    resolved = plan_for_points()
    with Ledger.open(points.with_name("ledger.db")) as ledger:
        service = SiteService(load_policy(points), ledger, task=lambda _: Watched())
        for number in (1, 2):
            body = {"run": "first", "round": number, "attempt": 1, "plan": resolved.plan.digest}
            letter = wire.read_letter(service.answer(server.write("train", body, Watched().initial())), most=2**22)
            assert letter.kind == "update"
    caplog.clear()
    assert taken(points, run="second", server=server) == "refused"
    (line,) = [record.getMessage() for record in caplog.records if "allow more" in record.getMessage()]
    act, _, command = line.partition("allow more: ")[2].partition(", serve again, and then ")
    words = shlex.split(command)
    assert act.startswith("set epsilon = ") and act.endswith(" or more under [record] in the policy")
    assert words[:3] == ["quietsum", "ledger", "raise"] and words[3:5] == ["--workspace", str(tmp_path)]
    wanted = act.split()[3]
    assert words[words.index("--epsilon") + 1] == wanted

    change(points, (f"epsilon = {1.01 * cost}", f"epsilon = {wanted}"))
    caplog.clear()
    assert taken(points, run="second", server=server) == "refused", "one act is not enough"
    (line,) = [record.getMessage() for record in caplog.records if "allow more" in record.getMessage()]
    assert line.endswith(f"allow more: {command}"), "and the other one is all that is left to do"
    quietsum(*words[1:])
    assert taken(points, run="second", server=server) == "enrolled"


# ------------------------------------------------------------------------------------- one ledger, two processes


def at(address: str, pinned: str = "") -> CoordinatorAddress:
    return CoordinatorAddress(address=address, ledger=pinned)


def test_one_process_for_each_coordinator_serves_a_site(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    here = at("one.example.org:9092", FIRST)
    with hold_place(place, here):
        with hold_place(place, at("two.example.org:9092", SECOND)):
            pass
        for other, told in (
            (here, "for the coordinator at one.example.org:9092; end it first"),
            (at("ONE.example.org:9092", SECOND), "for the coordinator at ONE.example.org:9092"),
            (at("192.0.2.1:9092", FIRST), "for the coordinator at 192.0.2.1:9092"),
            (at("two.example.org:9092"), "pin each one in its own policy"),
        ):
            with pytest.raises(QuietsumError, match=told), hold_place(place, other):
                pass
        with hold_place(tmp_path / "other.db", here):
            pass
    with (
        hold_place(place, at("two.example.org:9092")),
        pytest.raises(QuietsumError, match="pin each one in its own policy"),
        hold_place(place, here),
    ):
        pass
    with hold_place(place, here):  # whoever ends, makes room
        pass


def test_a_second_command_for_another_pinned_coordinator_is_served(policy: Path) -> None:
    change(policy, ("[coordinator]", f'[coordinator]\nledger = "{FIRST}"'))
    second = policy.with_name("second.toml")
    second.write_text(policy.read_text(encoding="utf-8"), encoding="utf-8")
    change(second, (FIRST, SECOND), ("fl.example.org", "fl.example.net"))
    with hold_place(policy.with_name("ledger.db"), load_policy(policy).coordinator):
        assert "waiting for fl.example.net:9092" in said(quietsum("party", "serve", "--policy", second))
        told = said(quietsum("party", "serve", "--policy", policy, code=2))
        assert "another process serves the site" in told


def test_where_the_ledger_knows_two_coordinators_a_policy_says_which_one(points: Path) -> None:
    servers = [Server(), Server()]
    names = [server.ledger.identity.ledger for server in servers]
    text = points.read_text(encoding="utf-8")
    for server, name in zip(servers, names, strict=True):
        points.write_text(text.replace("[coordinator]", f'[coordinator]\nledger = "{name}"'), encoding="utf-8")
        assert taken(points, server=server) == "enrolled"
    assert "waiting for" in said(quietsum("party", "serve", "--policy", points)), "the control: pinned"
    points.write_text(text, encoding="utf-8")
    for words in (("check", points), ("serve", "--policy", points)):
        told = said(quietsum("party", *words, code=2))
        assert "the ledger knows 2 coordinators; pin the one at fl.example.org:9092" in told
        assert names[0] in told and names[1] in told


# --------------------------------------------------------------------------------------------- rows and their schema


@pytest.fixture
def heart(policy: Path) -> Path:
    """The policy of a hospital of heart, which names a schema that its rows do not fit."""
    change(policy, ('name = "north"', 'name = "cleveland"'))
    columns = ", ".join(f'{{ name = "x.{place}" }}' for place in range(1, 15))
    policy.with_name("data.toml").write_text(
        f'columns = [{{ name = "x.0", max = -2 }}, {columns}, {{ name = "label" }}]\n[rows]\nduplicates = 1.0\n'
    )
    with policy.open("a", encoding="utf-8") as file:
        file.write('\n[data]\nschema = "data.toml"\n')
    return policy


UNFIT = "task heart: the data does not fit its schema: range in x.0; quietsum data check --policy says where"


def test_rows_that_do_not_fit_are_told_to_the_operator_who_checks_or_serves(heart: Path) -> None:
    assert f"error: {UNFIT}" in said(quietsum("party", "check", heart, code=2))
    assert UNFIT in json.loads(quietsum("party", "check", heart, "--json", code=2).stdout)["problems"][0]
    told = said(quietsum("party", "serve", "--policy", heart))
    assert f"warning: {UNFIT}" in told and "noise alone leaves until it fits, and is charged" in told
    told = said(quietsum("data", "check", "--policy", heart, code=2))
    assert "x.0: lies above -2 (" in told
    schema = heart.with_name("data.toml")
    schema.write_text(schema.read_text().replace("max = -2", "max = 3"))
    assert "does not fit" not in said(quietsum("party", "check", heart))
    assert "does not fit" not in said(quietsum("party", "serve", "--policy", heart))
    assert "heart at cleveland fits data.toml" in said(quietsum("data", "check", "--policy", heart))


def test_with_refuse_a_site_does_not_start_unless_a_run_waits_for_it(
    heart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(heart, ('\nschema = "data.toml"', '\nschema = "data.toml"\non_failure = "refuse"'))
    assert UNFIT in said(quietsum("party", "serve", "--policy", heart, code=2))
    monkeypatch.setattr("quietsum.party.data.is_awaited", lambda ledger: True)
    told = said(quietsum("party", "serve", "--policy", heart))
    assert "staying away now would tell of its rows. Ctrl-C ends it, by your own decision" in told


def test_with_warn_rows_that_do_not_fit_are_a_hint(heart: Path) -> None:
    change(heart, ('\nschema = "data.toml"', '\nschema = "data.toml"\non_failure = "warn"'))
    assert f"{UNFIT}, on a terminal; it is trained on all the same" in said(quietsum("party", "check", heart))
    assert "it is trained on all the same" in said(quietsum("party", "serve", "--policy", heart))


def test_a_schema_that_cannot_be_read_keeps_a_site_from_serving(heart: Path) -> None:
    schema = heart.with_name("data.toml")
    schema.write_text(schema.read_text().replace("max =", "maxx ="))
    for words in (("check", heart), ("serve", "--policy", heart)):
        assert "did you mean columns.max?" in said(quietsum("party", *words, code=2))
    assert not heart.with_name("ledger.db").exists()


def test_with_drop_the_operator_is_told_that_rows_are_left_out(heart: Path) -> None:
    change(heart, ('\nschema = "data.toml"', '\nschema = "data.toml"\non_failure = "drop"'))
    assert "rows that do not fit by themselves are left out" in said(quietsum("party", "check", heart))
    assert "rows that do not fit by themselves are left out" in said(quietsum("party", "serve", "--policy", heart))


QUESTIONS = """
[questions]
table = "points.csv"
epsilon = 0.5
day = 1.0
[[questions.columns]]
name = "x"
kind = "number"
bounds = [0, 1]
"""


@pytest.mark.parametrize(
    ("table", "code", "told"),
    [
        (None, 0, "questions would be refused, since it has no data here"),
        ("x,y\n0.5,1\n", 0, ""),
        ("y\n1\n", 2, "is not in the first line"),
        ("", 2, "is empty"),
        ('x,y\n"0,5",1\n"0,7",1\n', 0, "most values of x are no number"),
        ("x,y\n" + "0.5,1\n" * 130, 0, "has more rows than its declared size"),
    ],
)
def test_the_table_that_is_asked_is_looked_at_for_its_operator(
    policy: Path, table: str | None, code: int, told: str
) -> None:
    policy.write_text(policy.read_text(encoding="utf-8") + QUESTIONS, encoding="utf-8")
    if table is not None:
        (policy.parent / "points.csv").write_text(table)
    words = said(quietsum("party", "check", policy, code=code))
    assert told in words
    if table == "x,y\n0.5,1\n":
        assert "points.csv" not in words and "questions (count" in words


ASKED = """
[privacy]
epsilon = 0.5
delta = 1e-6
[[sites]]
name = "north"
dataset = "points-north"
size = 120
[[sites]]
name = "elsewhere"
size = 100
[[columns]]
name = "x"
kind = "number"
bounds = [0, 1]
[[questions]]
name = "mean of x"
kind = "mean"
column = "x"
"""


def test_the_operator_tries_a_file_of_questions_on_the_policy(policy: Path) -> None:
    policy.write_text(policy.read_text(encoding="utf-8") + QUESTIONS, encoding="utf-8")
    (policy.parent / "points.csv").write_text("x,y\n0.5,1\n")
    asked = policy.parent / "questions.toml"
    asked.write_text(ASKED, encoding="utf-8")
    before = files(policy.parent)
    assert "questions.toml would be taken" in said(quietsum("party", "check", policy, "--plan", asked))
    asked.write_text(ASKED.replace("bounds = [0, 1]", "bounds = [0, 2]"), encoding="utf-8")
    assert "is not described as the site" in said(quietsum("party", "check", policy, "--plan", asked, code=2))
    asked.write_text(ASKED.replace("epsilon = 0.5", "epsilon = 0.6"), encoding="utf-8")
    told = said(quietsum("party", "check", policy, "--plan", asked, code=2))
    assert "error: " in told and "would be taken" not in told
    assert set(files(policy.parent)) == set(before)
