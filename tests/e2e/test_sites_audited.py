"""Sites on a real SuperLink take the canaries of a plan, and each audits itself by its own policy.toml."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.test_flower import POLICY, SITES, SIZES, Stage, quietsum, until
from quietsum.report import check_report

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.long]  # over a wire the same bytes as over a list, which tests/audit has

COUNT, ROUNDS, STEPS = 300, 4, 40
PLAN = f"""
[task]
name = "held_task:HeldHeart"
[federation]
rounds = {ROUNDS}
spare_attempts = 2
deadline = 180.0
[training]
sample_rate = 0.2
local_steps = {STEPS}
canaries = {COUNT}
[privacy]
style = "sample"
record = {{ noise_multiplier = 2.0, delta = 1e-4, max_grad_norm = 1.0, lifetime = {{ epsilon = 60.0, delta = 1e-4 }} }}
"""
REFUSES = "cleveland"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    try:
        made.plan.write_text(PLAN, encoding="utf-8")
        for name in SITES:
            text = POLICY.format(name=name, port=made.port, size=SIZES[name], epsilon=60.0)
            rules = "[rules]\nmost_canaries = 0\n" if name == REFUSES else ""
            (made.keys / name / "policy.toml").write_text(text + rules, encoding="utf-8")
        made.superlink()
        for name in SITES:
            made.site(name)
        yield made
    finally:
        made.end()


@pytest.mark.timeout(600)
def test_sites_on_other_machines_carry_canaries_and_audit_themselves(stage: Stage) -> None:
    until(lambda: all("waiting for" in stage.said(name) for name in SITES), "every site serves")
    stage.run(str(stage.plan), "--name", "one")
    stage.ended()
    assert "is more than 0" in stage.said(REFUSES) and not list((stage.keys / REFUSES).rglob("included*"))
    assert not list(stage.workspace.rglob("*canar*")) and not list(stage.workspace.rglob("included*"))
    for name in SITES:
        policy = stage.keys / name / "policy.toml"
        if name == REFUSES:
            quietsum("audit", "one", "--site", str(policy), code=2)
            continue
        found = json.loads(quietsum("audit", "one", "--site", str(policy), "--json"))
        assert found["conclusion"] == "consistent", found["sentence"]
        assert (found["canaries"], found["steps"], found["parties"]) == (COUNT, ROUNDS * STEPS, 1)
        assert 0 <= found["lower_bound"]["epsilon"] < found["claim"]["epsilon"]
        record = [path for path in (stage.keys / name / "ledger.db.canaries").rglob("*") if path.is_file()]
        assert len(record) == 1 + ROUNDS + 1 and {stat.S_IMODE(one.stat().st_mode) for one in record} == {0o600}
        coins = next(path for path in record if path.name == "included.safetensors")
        content = coins.read_bytes()
        coins.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        quietsum("audit", "one", "--site", str(policy), code=4)  # a record that was altered is no evidence
    quietsum("report", "one", "--workspace", str(stage.workspace))
    checked = check_report((stage.workspace / "runs" / "one" / "report.json").read_bytes())
    assert "audit" in dict(checked.unchecked), "the coordinator's report says that the audit is not in it"
