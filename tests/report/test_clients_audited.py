"""The audit of whole clients in the report: beside the claim, computed again elsewhere, never left out in silence."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quietsum.audit import CLIENT_AUDIT, Conclusion, audit_run_clients
from quietsum.errors import CorruptState
from quietsum.plan import PartyFacts, Plan
from quietsum.report import build, check_pack_file, check_report, make_pack, render, render_page, sign_report
from quietsum.runs import Workspace
from quietsum.runs.run import start
from quietsum.tasks import as_task
from scenes import quietsum
from tiny import TinyTask, tiny_plan

ROUNDS, COUNT = 60, 200


class Many(TinyTask):
    """Thirty sites of a few made-up points."""

    def parties(self) -> tuple[PartyFacts, ...]:
        known = TinyTask.parties(self)[0]
        return tuple(dataclasses.replace(known, name=f"p{at}", dataset=f"d{at}") for at in range(30))

    def rows(self, party: str) -> Any:
        return TinyTask.rows(self, "north")


def plan(rounds: int = ROUNDS, **privacy: Any) -> Plan:
    client = {"noise_multiplier": 2.0, "delta": 1e-3, "max_norm": 0.5, "canaries": COUNT}
    return tiny_plan(
        federation={"rounds": rounds, "sampling": {"kind": "poisson", "rate": 0.25}},
        privacy={"style": "user", "client": client, "record": None, **privacy},
        training={"sample_rate": 0.5, "local_steps": 1},
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    place = Workspace.at(tmp_path_factory.mktemp("clients"))
    start(plan(), workspace=place, name="one", task=as_task(Many(public="made up")))
    start(plan(rounds=2), workspace=place, name="short", task=as_task(Many(public="made up")))
    for name in ("one", "short"):
        audit_run_clients(name, place)
    return place


@pytest.fixture
def place(made: Workspace, tmp_path: Path) -> Workspace:
    """A copy to spoil."""
    shutil.copytree(made.path, tmp_path / "own")
    return Workspace.at(tmp_path / "own")


def report(place: Workspace, run: str = "one") -> dict[str, Any]:
    return sign_report(build(place.find(run), place), place)


def audit_file(place: Workspace, run: str = "one") -> Path:
    return place.find(run).path / CLIENT_AUDIT


def test_the_verdict_stands_beside_the_claim_with_the_smallest_faults_that_it_finds(made: Workspace) -> None:
    found, values = audit_run_clients("one", made), report(made)
    section = values["client_audit"]
    assert found.conclusion is Conclusion.CONSISTENT and section["conclusion"] == "consistent"
    assert section["text"].startswith(found.sentence) and " stands ε ≥ " in section["text"]
    assert values["audit"]["made"] is False and "whole clients are below" in values["audit"]["text"]
    page = render_page(values)
    assert "Audit of whole clients" in page and "no bound to either side" in page
    for power in found.tests.powers:
        assert power.sentence in page.replace("\u00a0", " ")
    checked = dict(check_report(render(values)).checked)
    assert "what faults it finds was computed again, and ε ≥ as well" in checked["client audit"]


def test_pack_and_views_carry_it(made: Workspace) -> None:
    values = report(made)
    pack, names = make_pack(values, made.find("one").path, made)
    assert CLIENT_AUDIT in names
    assert ("file", f"{CLIENT_AUDIT} is the file that the report speaks of") in check_pack_file(pack).checked
    for view in (b"# Model card", b"# SATRE", b"# NIST SP 800-226"):
        start = pack.index(view)
        assert b"Audit of whole clients: The audit is consistent" in pack[start : start + 20_000]
    with pytest.raises(CorruptState):
        check_pack_file(pack.replace(b"canary clients (", b"canary cIients (", 1))


def test_the_dashboard_shows_it_and_names_runs_that_wait(place: Workspace) -> None:
    from web.places import look

    audit_file(place, "short").unlink()
    with look(place.path) as client:
        page = client.get("/audits").text
    assert "one</a>: whole clients" in page and "canary clients" in page and "per client" in page
    assert "less noise: by" in page and "quietsum audit short" in page and "quietsum audit one" not in page


def test_one_command_audits_what_a_run_carried(place: Workspace) -> None:
    audit_file(place).unlink()
    assert "though the run carried canary clients" in report(place)["client_audit"]["text"]
    told = quietsum("audit", "one", "--workspace", place.path).stdout
    assert "The run itself carried these clients" in told and CLIENT_AUDIT in told
    values = json.loads(quietsum("audit", "one", "--workspace", place.path, "--json").stdout)
    assert values["unit"] == "client" and values["conclusion"] == "consistent"
    assert values == {"run": "one", **{k: v for k, v in json.loads(audit_file(place).read_text()).items()
                                       if k not in ("format", "record")}}  # fmt: skip


@pytest.mark.parametrize("forge", [
    lambda audit: audit.update(conclusion="contradicted"),
    lambda audit: audit["evidence"][0].update(p=1e-9),
    lambda audit: audit["evidence"][0].update(p=1e-9, contradicts=True),
    lambda audit: audit["evidence"].__setitem__(9, audit["evidence"][0]),
    lambda audit: audit.update(evidence=audit["evidence"][:9]),
    lambda audit: audit["powers"][0].update(smallest=0.001),
    lambda audit: audit["powers"][2].update(chance=0.5, enough=True),
    lambda audit: audit["powers"].pop(),
    lambda audit: audit["observed"].update(information=2 * audit["observed"]["information"]),
    lambda audit: audit["observed"].update(numbers=2 * audit["observed"]["numbers"]),
    lambda audit: audit["lower_bound"].update(epsilon=audit["lower_bound"]["epsilon"] + 0.01),
    lambda audit: audit["lower_bound"]["guesses"][0].__setitem__(1, audit["lower_bound"]["guesses"][0][0]),
    lambda audit: audit["lower_bound"]["guesses"][0].__setitem__(0, 10**12),
    lambda audit: audit["lower_bound"]["guesses"][0].__setitem__(1, -1),
    lambda audit: audit["claim"].update(epsilon=0.1),
    lambda audit: audit["claim"].update(delta=1e-9),
    lambda audit: audit["claim"].update(sample_rate=0.5),
    lambda audit: audit.update(canaries=COUNT + 1),
    lambda audit: audit.update(included=COUNT + 1),
    lambda audit: audit.update(steps=10 * ROUNDS),
    lambda audit: audit.update(text="The audit is consistent with the claim: all is well."),
    lambda audit: audit.pop("powers"),
])  # fmt: skip
@pytest.mark.some(6)
def test_a_figure_that_does_not_follow_is_found_though_it_was_signed(
    made: Workspace, forge: Callable[[dict[str, Any]], object]
) -> None:
    values = copy.deepcopy(report(made))
    check_report(render(values))
    forge(values["client_audit"])
    with pytest.raises(CorruptState, match=r"its audit|form of a report"):
        check_report(render(sign_report(values, made)))


def test_a_flipped_byte_of_the_verdict_is_found(made: Workspace) -> None:
    content = render(report(made))
    at = content.index(b'"client_audit"')
    place = content.index(b'"consistent"', at) + 3
    with pytest.raises(CorruptState, match="its signature is not that of its contents"):
        check_report(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def test_a_contradicted_claim_is_a_warning_and_the_check_ends_with_exit_code_5(place: Workspace) -> None:
    stored = json.loads(audit_file(place).read_text())
    stored["evidence"][0].update(p=1e-12, contradicts=True)
    stored.update(conclusion="contradicted", sentence="The audit contradicts the claim: made up for a test.")
    audit_file(place).write_text(json.dumps(stored))
    quietsum("report", "one", "--workspace", place.path)
    path = place.find("one").path / "report.json"
    values = json.loads(path.read_text())
    assert values["warnings"][0].startswith("The audit contradicts the claim")
    done = quietsum("report", "--verify", path, "--json", code=5)
    assert json.loads(done.stdout)["contradicted"] is True
    silent = sign_report({**values, "warnings": values["warnings"][1:]}, place)
    with pytest.raises(CorruptState, match="what its audit warns of"):
        check_report(render(silent))
    quietsum("report", "short", "--workspace", place.path)
    quietsum("report", "--verify", place.find("short").path / "report.json")  # inconclusive is no contradiction


def test_the_audit_of_another_run_is_found(place: Workspace) -> None:
    audit_file(place, "short").write_bytes(audit_file(place).read_bytes())
    with pytest.raises(CorruptState, match="another run"):
        build(place.find("short"), place)
    stored = {**json.loads(audit_file(place).read_text()), "run": "short"}
    audit_file(place, "short").write_text(json.dumps(stored))
    with pytest.raises(CorruptState, match="make it again"):  # its record is another one
        build(place.find("short"), place)
    longer, shorter = report(place), copy.deepcopy(report_of_short(place))
    shorter["client_audit"] = longer["client_audit"]
    with pytest.raises(CorruptState, match="its audit"):  # sixty rounds in a run of two
        check_report(render(sign_report(shorter, place)))


def report_of_short(place: Workspace) -> dict[str, Any]:
    audit_run_clients("short", place)
    return report(place, "short")


def test_a_file_that_says_otherwise_than_the_report_is_found(made: Workspace) -> None:
    values, content = copy.deepcopy(report(made)), audit_file(made).read_bytes()
    files = {CLIENT_AUDIT: content}
    check_report(render(values), files=files)
    assert values["client_audit"]["evidence"][0]["p"] != 0.5
    values["client_audit"]["evidence"][0]["p"] = 0.5
    with pytest.raises(CorruptState, match="says otherwise"):
        check_report(render(sign_report(values, made)), files=files)


def test_records_and_clients_of_one_run_are_audited_by_one_command(tmp_path: Path) -> None:
    place, record = Workspace.at(tmp_path), {"noise_multiplier": 2.0, "delta": 1e-3}
    whole = plan(rounds=4, style="hybrid", record=record)
    both = dataclasses.replace(whole, training=dataclasses.replace(whole.training, canaries=20))
    start(both, workspace=place, name="both", task=as_task(Many(public="made up")))
    values = json.loads(quietsum("audit", "both", "--workspace", tmp_path, "--json").stdout)
    assert values["parties"] == 30 and values["clients"]["unit"] == "client"
    told = quietsum("audit", "both", "--workspace", tmp_path).stdout
    assert "per record" in told and "per client" in told
    signed = report(place, "both")
    assert signed["audit"]["made"] and signed["client_audit"]["made"]
    checked = dict(check_report(render(signed)).checked)
    assert {"audit", "client audit"} <= set(checked) and "computed again" in checked["audit"]


def test_reports_from_before_it_still_verify_and_say_that_it_is_missing(made: Workspace) -> None:
    values = report(made)
    old = {name: value for name, value in values.items() if name != "client_audit"}
    found = check_report(render(sign_report(old, made)))
    assert "client audit" in dict(found.unchecked) and "client audit" not in dict(found.checked)
    plain = copy.deepcopy(values)
    del plain["client_audit"]["observed"], plain["client_audit"]["lower_bound"]["guesses"]
    assert "computed again" not in dict(check_report(render(sign_report(plain, made))).checked)["client audit"]
