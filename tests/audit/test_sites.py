"""Canaries at sites elsewhere: each keeps its coins and its record, audits itself, and may refuse to carry any."""

from __future__ import annotations

import dataclasses
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from audit.test_federations import halve_noise
from federation.sites import Place, facts_of, policy_for
from quietsum import report
from quietsum.audit import Conclusion, audit_run, audit_site
from quietsum.errors import CorruptState, QuietsumError
from quietsum.federation import ListTransport, RemoteFederation
from quietsum.party import canaries_beside, load_policy
from quietsum.party.policy import Rules, UnitPolicy
from quietsum.plan import Plan, load_plan
from quietsum.runs import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_of
from scenes import quietsum

COUNT = 300
TEXT = """
[task]
name = "heart"
[federation]
rounds = 4
spare_attempts = 2
deadline = 60.0
[training]
sample_rate = 0.2
local_steps = 40
canaries = {count}
[privacy]
style = "sample"
{noise}record = {{ noise_multiplier = 2.0, delta = 1e-4, max_grad_norm = 1.0 }}
"""
UNIT = UnitPolicy(epsilon=60.0, delta=1e-4)


def plan(count: int = COUNT, noise: str = "") -> Plan:
    return load_plan(TEXT.format(count=count, noise=noise))


def places(folder: Path, made: Plan, *, kept: bool = True, **rules: Any) -> dict[str, Place]:
    allowed = Rules(aggregation=("mean",), **rules)
    return {
        name: Place(
            policy_for(name, folder / name, made, record=UNIT, rules=allowed), folder / name,
            {"canaries": canaries_beside(folder / name / "ledger.db")} if kept else {},
        )
        for name in sorted(facts_of(made))
    }  # fmt: skip


def run(folder: Path, made: Plan, sites: dict[str, Place]) -> Workspace:
    services = {name: place.start() for name, place in sites.items()}
    carrier = ListTransport({f"node-{name}": service.answer for name, service in services.items()})
    workspace = Workspace.at(folder / "coordinator")
    federation = RemoteFederation(carrier, roster=None, patience=5.0)
    start(made, workspace=workspace, name="one", task=task_of(made), federation=federation)
    for service in services.values():
        service.books.ledger.close()
    return workspace


def test_each_site_audits_itself_and_the_coordinator_sees_no_record(tmp_path: Path) -> None:
    made = plan()
    sites = places(tmp_path, made)
    workspace = run(tmp_path, made, sites)
    for name, place in sites.items():
        found, path = audit_site("one", place.policy)
        assert found.conclusion is Conclusion.CONSISTENT, (name, found.sentence)
        assert (found.parties, found.canaries, found.steps) == (1, COUNT, 160)
        assert found.claim.epsilon is not None and found.lower_bound < found.claim.epsilon
        record = sorted(path.parent.iterdir())
        assert len(record) == 1 + 4 + 1 and {stat.S_IMODE(one.stat().st_mode) for one in record} == {0o600}
        assert path.parent.parent == tmp_path / name / "ledger.db.canaries"
    assert not list(workspace.path.rglob("*canar*")) and not list(workspace.path.rglob("included*"))
    with pytest.raises(QuietsumError, match=r"the sites of one keep what is recorded .* --site policy.toml"):
        audit_run("one", workspace)
    told = report.build(workspace.find("one"), workspace)["audit"]
    assert told["made"] is False and "each of its sites" in told["text"]


def test_a_site_that_halves_its_noise_is_contradicted_by_its_own_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halve_noise(monkeypatch)
    monkeypatch.setattr("quietsum.party.work.rehearse_task", lambda *_, **__: None)
    made = plan()
    sites = places(tmp_path, made)
    run(tmp_path, made, sites)
    for place in sites.values():
        found, _ = audit_site("one", place.policy)
        assert found.conclusion is Conclusion.CONTRADICTED
        assert "noise" in [one.name for one in found.evidence if one.contradicts]


def test_a_site_that_was_started_anew_goes_on_with_the_same_coins(tmp_path: Path) -> None:
    from federation.world import World

    made = plan(40)
    sites = places(tmp_path, made)
    world = World(tmp_path, TEXT.format(count=40, noise=""), places=sites).join()
    world.round(1)
    coins = {path: path.read_bytes() for path in tmp_path.rglob("included.safetensors")}
    assert len(coins) == len(sites)
    for name in sites:
        world.restart(name)
    world.round(2)
    assert coins == {path: path.read_bytes() for path in tmp_path.rglob("included.safetensors")}
    assert len(list(tmp_path.rglob("round-*.safetensors"))) == 2 * len(sites)
    for name, place in sites.items():
        world.services[name].books.ledger.close()
        found, path = audit_site("run", place.policy)
        assert found.steps == 80 and found.conclusion is not Conclusion.CONTRADICTED
        content = path.parent.joinpath("included.safetensors").read_bytes()
        path.parent.joinpath("included.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CorruptState, match="is not what was written"):
            audit_site("run", place.policy)


@pytest.mark.parametrize(
    ("kept", "rules", "reason"),
    [(True, {"most_canaries": 0}, "is more than 0"), (True, {"most_canaries": COUNT - 1}, f"more than {COUNT - 1}"),
     (False, {}, "no folder")],
)  # fmt: skip
def test_a_site_may_refuse_and_nothing_is_charged_there(
    tmp_path: Path, kept: bool, rules: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan()
    sites = places(tmp_path, made, kept=kept, **rules)
    run(tmp_path, made, sites)  # which goes on without them, as without any site that refuses
    assert reason in caplog.text
    for place in sites.values():
        assert not place.books().runs()
        assert not list(place.folder.rglob("*.safetensors"))


def test_a_run_without_canaries_or_of_another_name_has_no_audit(tmp_path: Path) -> None:
    made = dataclasses.replace(plan(0), federation=dataclasses.replace(plan(0).federation, rounds=1))
    sites = places(tmp_path, made)
    run(tmp_path, made, sites)
    policy = next(iter(sites.values())).policy
    with pytest.raises(QuietsumError, match="carried no canaries"):
        audit_site("one", policy)
    with pytest.raises(QuietsumError, match="is no run of this site; known: one @"):
        audit_site("two", policy)
    with pytest.raises(QuietsumError, match="does not exist"):
        audit_site("one", dataclasses.replace(policy, folder=tmp_path / "nowhere"))
    assert json.dumps(made.to_dict()).count("canaries") == 0


POLICY = """
[site]
name = "va"
[coordinator]
address = "127.0.0.1:9092"
[dataset]
name = "{dataset}"
size = {size}
[record]
epsilon = 60.0
delta = 1e-4
[[tasks]]
name = "heart"
[rules]
aggregation = ["mean"]
"""


def test_a_sites_owner_audits_by_the_policy_file(tmp_path: Path) -> None:
    made = plan()
    facts = facts_of(made)["va"]
    file = tmp_path / "va" / "policy.toml"
    file.parent.mkdir()
    file.write_text(POLICY.format(dataset=facts.dataset, size=facts.size), encoding="utf-8")
    sites = {**places(tmp_path, made)}
    sites["va"] = dataclasses.replace(sites["va"], policy=load_policy(file))
    run(tmp_path, made, sites)
    told = quietsum("audit", "one", "--site", file).stdout
    assert "The audit is consistent with the claim" in told and "(mode 0600)" in told
    assert json.loads(quietsum("audit", "one", "--site", file, "--json").stdout)["parties"] == 1
    assert (
        "leave --attack and --workspace out"
        in quietsum("audit", "one", "--site", file, "--workspace", tmp_path, code=2).output
    )
    assert "no run of this site" in " ".join(quietsum("audit", "two", "--site", file, code=2).output.split())
