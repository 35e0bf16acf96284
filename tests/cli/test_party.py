"""A site's commands: a policy to begin with, what it says about a plan, what was spent, and mistakes in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from federation.sites import PLAN, Place, places_for, plan_of, remote
from quietsum.ledger import Ledger
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from scenes import quietsum


def widest(told: str) -> int:
    """Without the next command, and without lines that are one word: their path is the test's."""
    return max(len(line) for line in told.partition("next:")[0].splitlines() if " " in line.strip())


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A new policy, with the key and the certificate that it names."""
    quietsum("keys", "make", tmp_path / "keys", "--party", "va")
    for name in ("node.key", "ca.crt"):
        (tmp_path / "keys" / "va" / name).rename(tmp_path / name)
    path = tmp_path / "policy.toml"
    quietsum("party", "new", path, "--name", "va", "--dataset", "uci-heart-va", "--size", "85")
    return path


def test_a_new_policy_is_one_that_can_be_read(policy: Path) -> None:
    told = quietsum("party", "check", policy).stdout
    assert "va: dataset uci-heart-va, 85 records (declared)" in told
    assert "per record: ε ≤ 8 over all runs at δ = 1e-05, ≤ 3 in one" in told
    assert widest(told) <= 80


def test_nothing_is_overwritten(policy: Path) -> None:
    assert "nothing is overwritten" in quietsum("party", "new", policy, code=2).stderr


def test_a_name_that_no_policy_takes_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    told = quietsum("party", "new", path, "--name", 'a"b', code=2).stderr
    assert "error:" in told and not path.exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("epsilon = 4.0", "epsilon = 2.0"), ""),
        (("epsilon = 4.0", "epsilon = 4.0"), "ε = 4 per record is more than ε = 3 per record for one run"),
        (('style = "sample"\nrecord = { epsilon = 4.0, delta = 1e-4 }', 'style = "none"'), "promises nothing"),
    ],
)
def test_a_plan_is_held_against_the_policy_before_anybody_asks(
    policy: Path, tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    plan = tmp_path / "run.toml"
    plan.write_text(PLAN.replace(*change).replace("delta = 1e-4", "delta = 1e-5"), encoding="utf-8")
    result = quietsum("party", "check", policy, "--plan", plan, code=2 if told else 0)
    if told:
        assert told in " ".join(result.stderr.split())
        values = json.loads(quietsum("party", "check", policy, "--plan", plan, "--json", code=2).stdout)
        assert told in values["refused"]
    else:
        assert "would be taken" in result.stdout
    assert not (tmp_path / "ledger.db").exists(), "looking writes nothing"


def test_a_spent_budget_is_seen_before_anybody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # in a pipe each row of a table is one line
    plan = plan_of()
    places = places_for(plan, tmp_path)
    federation, _, services = remote(places)
    start(plan, workspace=Workspace.at(tmp_path / "workspace"), federation=federation)
    for service in services.values():
        service.books.ledger.close()
    policy = tmp_path / "va" / "policy.toml"
    quietsum("party", "new", policy, "--name", "va", "--dataset", "uci-heart-va", "--size", "85")
    text = policy.read_text(encoding="utf-8").replace("epsilon = 8.0", "epsilon = 10.0").replace("1e-5", "1e-4")
    policy.write_text(text.replace("run = 3.0", "run = 9.0"), encoding="utf-8")
    big = tmp_path / "run.toml"
    big.write_text(PLAN.replace("epsilon = 4.0", "epsilon = 9.0"), encoding="utf-8")
    assert "lifetime" in quietsum("party", "check", policy, "--plan", big, code=2).stderr

    told = quietsum("party", "status", "--policy", policy).stdout
    assert "ε 10 per record" in told and "spent over all runs" in told and widest(told) <= 80
    assert "neighbours, against the server and recipients of the model" in " ".join(told.split())
    values = json.loads(quietsum("party", "status", "--policy", policy, "--json").stdout)
    (run,) = values["runs"]
    assert (run["reserved"], run["committed"], run["task"]) == (2, 2, "heart")
    assert 0 < values["budgets"][0]["spent_epsilon"] < values["budgets"][0]["epsilon"] == 10.0

    policy.write_text(policy.read_text(encoding="utf-8").replace("epsilon = 10.0", "epsilon = 9.5"), encoding="utf-8")
    told = " ".join(quietsum("party", "status", "--policy", policy).stdout.split())
    assert "every plan is refused" in told, "a ledger's budget never goes down"
    policy.write_text(policy.read_text(encoding="utf-8").replace("epsilon = 9.5", "epsilon = 12.0"), encoding="utf-8")
    assert "quietsum ledger raise" in " ".join(quietsum("party", "status", "--policy", policy).stdout.split())


def site(folder: Path, style: str, runs: int) -> Path:
    """The policy of a site that has taken part so often."""
    from party.asking import MODEL, UNIT, Server, Watched, plan, policy as policy_with
    from quietsum import wire
    from quietsum.party.books import write_resolved
    from quietsum.party.service import SiteService

    units = [unit.value for unit in policy_with(style).budgets]
    budget = f"epsilon = {UNIT.epsilon}\ndelta = {UNIT.delta}\n"
    path = folder / "policy.toml"
    path.write_text(
        '[site]\nname = "north"\n[coordinator]\naddress = "127.0.0.1:9092"\n[dataset]\nname = "points-north"\n'
        'size = 120\n[[tasks]]\nname = "points"\n[rules]\naggregation = ["mean", "noisy-sum", "party-noise"]\n'
        + "".join(f"[{unit}]\n{budget}" for unit in units),
        encoding="utf-8",
    )
    server, asked = Server(), plan(style)
    with Ledger.open(folder / "ledger.db", create=True) as ledger:
        service = SiteService(policy_with(style), ledger, task=lambda _: Watched())
        for number in range(runs):
            name = f"run-{number}"
            body = {"run": name, "round": 1, "attempt": 1, "plan": asked.plan.digest}
            for kind, words, vector in (
                ("enrol", {"run": name, "resolved": write_resolved(asked)}, None),
                ("train", body, MODEL),
            ):
                letter = wire.read_letter(service.answer(server.write(kind, words, vector)), most=2**22)
                assert letter.kind in ("enrolled", "update"), letter.body
    return path


def told_by(path: Path) -> str:
    shown = quietsum("party", "status", "--policy", path).stdout
    assert widest(shown) <= 80
    return " ".join(shown.split())


def test_after_several_runs_a_status_tells_the_share_of_the_filter_and_not_that_all_is_spent(tmp_path: Path) -> None:
    told = told_by(site(tmp_path, "sample", 3))
    assert "ε 30 per record, δ 0.001 0.1 % (filter) 3" in told
    assert "all runs together ε ≤ 30 per record at δ = 0.001, between add-or-remove-one neighbours, " in told
    assert "0.1 % of it is used, which is a share of the filter and no ε" in told
    assert "30.0000" not in told
    shown = " ".join(quietsum("ledger", "show", "--workspace", tmp_path).stdout.split())
    assert "ε 30 per record, δ 0.001 0.1 % (filter) 3" in shown, "the same words about the same book"


def test_a_share_is_never_shown_as_none_where_something_was_spent() -> None:
    from quietsum.cli.sites.status import bound, spent_share

    line = {"unit": "record", "epsilon": 30.0, "delta": 1e-3, "bound_epsilon": 30.0, "neighbours": "zero-out"}
    line |= {"held_by": "filter", "spent_fraction": 1e-6, "observers": ["server", "recipients"]}
    assert spent_share(line) == "under 0.1 % (filter)" and "; under 0.1 % of it is used" in bound(line)
    assert spent_share({**line, "spent_fraction": 0.9999}) == "100.0 % (filter)"
    assert spent_share({**line, "held_by": "no gate", "spent_fraction": None}) == "no gate"
    assert spent_share({**line, "held_by": "overdrawn"}) == "more than it"
    assert "does not hold" in bound({**line, "held_by": "overdrawn"})
    unspent = {**line, "held_by": "nothing spent"}
    assert spent_share(unspent) == "nothing" and not bound(unspent)


def test_noise_at_the_server_is_said_to_protect_against_recipients_only(tmp_path: Path) -> None:
    only = "against recipients of the model only"
    told = told_by(site(tmp_path, "user", 1))
    so_far, _, runs = told.partition("so far")[2].partition("run-0:")
    assert only in so_far and only in runs and "against the server" not in told
    (tmp_path / "other").mkdir()
    told = told_by(site(tmp_path / "other", "party", 1))
    so_far, _, runs = told.partition("so far")[2].partition("run-0:")
    assert "between replace-one neighbours, against the server and recipients" in so_far and only not in so_far + runs


def test_a_site_under_another_name_is_told_whose_the_books_are(tmp_path: Path) -> None:
    path = site(tmp_path, "sample", 1)
    assert "warning" not in told_by(path), "the control: its own name"
    path.write_text(path.read_text(encoding="utf-8").replace('"north"', '"clinic-7"'), encoding="utf-8")
    told = told_by(path)
    assert "under the name 'north'" in told and "every plan is refused until it bears that name again" in told
    assert "ε 30 per record, δ 0.001 nothing 0" in told and "as north with dataset points-north" in told


def test_a_policy_that_wants_a_relation_says_so(policy: Path) -> None:
    assert "neighbours" not in quietsum("party", "check", policy).stdout
    policy.write_text(policy.read_text(encoding="utf-8") + 'neighbours = "replace-one"\n', encoding="utf-8")
    assert "between replace-one neighbours" in quietsum("party", "check", policy).stdout


def test_a_policy_that_demands_masked_sums_says_so_and_refuses_a_plan_below_them(policy: Path, tmp_path: Path) -> None:
    plan = tmp_path / "run.toml"
    plan.write_text(PLAN.replace("epsilon = 4.0, delta = 1e-4", "epsilon = 2.0, delta = 1e-5"), encoding="utf-8")
    quietsum("party", "check", policy, "--plan", plan)  # the control
    assert "the server sees this site's updates, or masked sums" in quietsum("party", "check", policy).stdout
    text = policy.read_text(encoding="utf-8").replace(
        "trust_server", 'smallest_cohort = 4\nsecure = "required"\ntrust_server'
    )
    policy.write_text(text, encoding="utf-8")
    told = quietsum("party", "check", policy).stdout
    assert "the server sees masked sums alone of 4 sites or more" in told and widest(told) <= 80
    assert "a coordinator that makes up this site's peers would read its updates" in " ".join(told.split())
    pinned = policy.with_name("pinned.toml")
    peers = f'peers = {{ cleveland = "{"a" * 32}" }}\ntrust_server'
    pinned.write_text(text.replace("trust_server", peers), encoding="utf-8")
    assert "makes up" not in quietsum("party", "check", pinned).stdout
    refused = quietsum("party", "check", policy, "--plan", plan, code=2).stderr
    assert "secure aggregation is required" in " ".join(refused.split())
    masked = plan.read_text(encoding="utf-8") + "\n[aggregation]\nsecure = true\n"
    plan.write_text(masked, encoding="utf-8")
    refused = quietsum("party", "check", policy, "--plan", plan, code=2).stderr
    assert "sums of 3 sites would be unmasked, and the policy wants 4" in " ".join(refused.split())
    plan.write_text(masked + "drop_outs = 0.0\n", encoding="utf-8")
    assert "would be taken" in quietsum("party", "check", policy, "--plan", plan).stdout
    values = json.loads(quietsum("party", "check", policy, "--json").stdout)
    assert values["secure"]["secure"] == "required" and values["secure"]["smallest_cohort"] == 4


def test_a_policy_for_much_data_has_a_delta_that_fits(policy: Path) -> None:
    large = policy.with_name("large.toml")
    quietsum("party", "new", large, "--size", "3000000")
    assert "at δ = 1e-08" in quietsum("party", "check", large).stdout


def test_receipts_are_anchors_for_the_other_side(tmp_path: Path) -> None:
    plan = plan_of()
    federation, _, services = remote(places_for(plan, tmp_path))
    start(plan, workspace=Workspace.at(tmp_path / "workspace"), federation=federation)
    mine = services["va"].books.ledger.identity.ledger
    seen = tmp_path / "seen.jsonl"
    told = quietsum("ledger", "receipts", "--workspace", tmp_path / "workspace", "--of", mine[:8], "--output", seen)
    assert "1 ledgers or runs" in told.stdout
    quietsum("ledger", "verify", "--workspace", tmp_path / "va", "--anchor", seen)
    assert (
        "another ledger"
        in quietsum("ledger", "verify", "--workspace", tmp_path / "cleveland", "--anchor", seen, code=4).stderr
    )
    assert (
        "are not in this ledger"
        in quietsum("ledger", "receipts", "--workspace", tmp_path / "workspace", "--of", "ffff" * 8, code=2).stderr
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("party", "serve", "--policy", "missing.toml"), "quietsum party new"),
        (("party", "status", "--policy", "missing.toml"), "quietsum party new"),
        (("superlink",), "needs --keys DIR and --listen"),
        (("superlink", "--keys", "missing", "--listen", "127.0.0.1:1"), "missing"),
        (("ledger", "receipts", "--workspace", "missing"), "no ledger"),
    ],
)
def test_mistakes_end_with_2_and_a_lesson(words: tuple[str, ...], told: str) -> None:
    assert told in " ".join(quietsum(*words, code=2).stderr.split())


@pytest.mark.parametrize(
    ("remove", "told"),
    [("node_key", "quietsum keys node"), ("root_certificate", "take ca.crt from the coordinator's operator")],
)
def test_a_site_does_not_start_without_keys(policy: Path, remove: str, told: str) -> None:
    lines = [line for line in policy.read_text(encoding="utf-8").splitlines() if not line.startswith(remove)]
    policy.write_text("\n".join(lines), encoding="utf-8")
    assert told in " ".join(quietsum("party", "serve", "--policy", policy, code=2).stderr.split())
    assert not policy.with_name("ledger.db").exists()


BROKEN_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.fixture
def quiet(policy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The policy of a site whose key and certificate are in order, and whose connection ends at once."""
    pytest.importorskip("flwr")
    monkeypatch.setattr("quietsum.federation.flower.node.serve_node", lambda answer, **how: None)
    monkeypatch.setattr("signal.signal", lambda *how: None)
    return policy


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("node.key", None, "is not there"),
        ("node.key", "", "no whole private key"),
        ("node.key", BROKEN_KEY, "no whole private key"),
        ("node.key", 0o644, "chmod 600"),
        ("ca.crt", None, "is not there"),
        ("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no whole PEM certificate"),
        ("ca.crt", BROKEN_KEY, "no whole PEM certificate"),
    ],
)
def test_a_mistake_in_the_keys_leaves_nothing_behind(
    quiet: Path, name: str, content: str | int | None, told: str
) -> None:
    path = quiet.with_name(name)
    if content is None:
        path.unlink()
    elif isinstance(content, int):
        path.chmod(content)
    else:
        path.write_text(content, encoding="utf-8")
    result = quietsum("party", "serve", "--policy", quiet, code=2)
    assert told in result.stderr and str(path) in result.stderr
    assert "waiting for" not in result.stdout and not list(quiet.parent.glob("ledger.db*"))


def test_the_control_with_its_keys_in_order_a_site_has_a_ledger_and_waits(quiet: Path) -> None:
    told = quietsum("party", "serve", "--policy", quiet).stdout
    assert "waiting for fl.example.org:9092" in told and quiet.with_name("ledger.db").exists()


def test_a_site_says_that_the_first_coordinator_counts_until_one_is_pinned(quiet: Path, tmp_path: Path) -> None:
    def told() -> str:
        text = quietsum("party", "serve", "--policy", quiet).stdout
        assert widest(text) <= 80
        return " ".join(text.split())

    assert (
        'the first one that this site enrols with counts; pin it in the policy with coordinator.ledger = "…"' in told()
    )
    plan = plan_of()
    places = places_for(plan, tmp_path)
    federation, _, services = remote({**places, "va": Place(places["va"].policy, tmp_path)})
    start(plan, workspace=Workspace.at(tmp_path / "workspace"), federation=federation)
    for service in services.values():
        service.books.ledger.close()
    text = quiet.read_text(encoding="utf-8").replace("epsilon = 8.0", "epsilon = 10.0").replace("1e-5", "1e-4")
    quiet.write_text(text, encoding="utf-8")
    with Ledger.open(tmp_path / "workspace" / "ledger.db", read_only=True) as ledger:
        name = ledger.identity.ledger
    assert (
        f'the first one that this site enrols with counts; pin it in the policy with coordinator.ledger = "{name}"'
        in told()
    )
    text = quiet.read_text(encoding="utf-8").replace("[coordinator]", f'[coordinator]\nledger = "{name}"')
    quiet.write_text(text, encoding="utf-8")
    assert "no coordinator is pinned" not in told(), "the control: now it is"


def test_a_status_without_a_ledger_says_who_makes_one(policy: Path) -> None:
    told = quietsum("party", "status", "--policy", policy, code=2).stderr
    assert "quietsum party serve makes one" in told and "quietsum run" not in told
    assert not policy.with_name("ledger.db").exists(), "looking writes nothing"


def test_without_tls_only_loopback_is_served(policy: Path, tmp_path: Path) -> None:
    quietsum("keys", "node", tmp_path / "own")
    text = policy.read_text(encoding="utf-8").replace('"node.key"', '"own/node.key"')
    policy.write_text(text, encoding="utf-8")
    told = quietsum("party", "serve", "--policy", policy, "--insecure-loopback", code=2).stderr
    assert "in the clear" in told, "fl.example.org is not this machine"
    assert not policy.with_name("ledger.db").exists()


def test_two_processes_do_not_serve_one_site(policy: Path, tmp_path: Path) -> None:
    import fcntl

    quietsum("keys", "node", tmp_path / "own")
    text = policy.read_text(encoding="utf-8").replace('"node.key"', '"own/node.key"')
    policy.write_text(text.replace("fl.example.org", "127.0.0.1"), encoding="utf-8")
    with (tmp_path / "ledger.db.serving").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = quietsum("party", "serve", "--policy", policy, "--insecure-loopback", code=2).stderr
    assert "another process serves the site" in told and not (tmp_path / "ledger.db").exists()


def test_a_broken_ledger_is_no_refusal_of_a_plan(policy: Path, tmp_path: Path) -> None:
    from quietsum.ledger import Ledger

    Ledger.open(tmp_path / "ledger.db", create=True).close()
    (tmp_path / "ledger.db.head").write_text("nonsense", encoding="utf-8")
    plan = tmp_path / "run.toml"
    plan.write_text(PLAN.replace("epsilon = 4.0, delta = 1e-4", "epsilon = 2.0, delta = 1e-5"), encoding="utf-8")
    quietsum("party", "check", policy, "--plan", plan, code=4)
