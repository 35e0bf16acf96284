"""An audit in the report: beside the claim, checked on another machine, and never passed over in silence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quietsum import PrivacyConfig, PrivateTrainer
from quietsum.audit import audit_training
from quietsum.errors import CorruptState
from quietsum.learning import Canaries
from quietsum.plan import GuaranteeCard
from quietsum.report import (
    build_training,
    check_pack_file,
    check_report,
    find_training,
    make_pack,
    render,
    render_page,
    sign_report,
)
from quietsum.runs import Workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("audited")
    torch.manual_seed(0)
    data = torch.randn(1000, 3), torch.arange(1000) % 2
    config = PrivacyConfig(epsilon=4.0, batch_size=50, epochs=10)
    trainer = PrivateTrainer(
        torch.nn.Linear(3, 2), config, workspace=folder, run="one", audit=Canaries(count=300), selfcheck=False
    )
    trainer.train(data, learning_rate=0.5, progress=False)
    trainer.close()
    return Workspace.at(folder)


def report(place: Workspace) -> dict[str, Any]:
    training = find_training("one", place)
    assert training is not None
    return build_training(training, place)


def audit_file(place: Workspace) -> Path:
    return place.path / "training" / "one" / "audit.json"


def test_canaries_that_were_not_looked_at_are_said_to_be_there(place: Workspace) -> None:
    audit_file(place).unlink(missing_ok=True)
    values = report(place)
    assert values["audit"]["made"] is False and "though the run carried canaries" in values["audit"]["text"]
    assert "though the run carried canaries" in render_page(values)


def test_the_result_stands_beside_the_claim_and_is_checked_on_another_machine(place: Workspace) -> None:
    found = audit_training("one", place)
    values = sign_report(report(place), place)
    assert values["audit"]["text"].startswith(found.sentence) and " stands ε ≥ " in values["audit"]["text"]
    page = render_page(values)
    assert "once an epoch" in page and "a clip of the whole batch" in page
    checked = dict(check_report(render(values)).checked)
    assert checked["audit"].startswith("its conclusion, consistent, follows from its figures")
    pack, names = make_pack(values, place.path / "training" / "one", place)
    assert {"audit.json", "guarantee.md", "guarantee.json"} <= set(names) and "views/model-card.md" in names
    assert ("file", "audit.json is the file that the report speaks of") in check_pack_file(pack).checked


def test_a_training_has_a_guarantee_card_that_says_what_is_not_promised(place: Workspace) -> None:
    values = report(place)
    clauses = {one["name"]: one for one in values["card"]["clauses"]}
    assert clauses["record-recipients"]["provided"] and "ε ≤ 4 per record" in clauses["record-recipients"]["text"]
    assert not clauses["person-recipients"]["provided"] and clauses["audit"]["provided"]
    assert "Not promised: poisoned data and backdoors are kept out." in " ".join(values["not_protected"])
    page = render_page(values)
    assert "Who learns what" in page and "max_records would state one" in page
    text = GuaranteeCard.from_dict(values["card"]).to_markdown()
    assert "What the server learns" not in text and "What recipients of the model learn" in text
    assert values["card"]["plan"] == values["plan_digest"]


@pytest.mark.parametrize("forge", [
    lambda audit: audit.update(conclusion="contradicted"),
    lambda audit: audit["evidence"][0].update(p=1e-9),
    lambda audit: audit["evidence"][0].update(p=1e-9, contradicts=True),
    lambda audit: audit["powers"][0].update(enough=False),
    lambda audit: audit.update(text="The audit is consistent with the claim: all is well."),
    lambda audit: audit["claim"].update(epsilon=1.0),
    lambda audit: audit.update(evidence=audit["evidence"][:3]),
    lambda audit: audit.pop("evidence"),
])  # fmt: skip
@pytest.mark.some(3)
def test_a_conclusion_that_does_not_follow_is_found_though_it_was_signed(
    place: Workspace, forge: Callable[[dict[str, Any]], object]
) -> None:
    audit_training("one", place)
    values = copy.deepcopy(report(place))
    forge(values["audit"])
    with pytest.raises(CorruptState, match="its audit"):
        check_report(render(sign_report(values, place)))


def test_a_contradicted_claim_stands_among_the_warnings(place: Workspace) -> None:
    audit_training("one", place)
    stored = json.loads(audit_file(place).read_text())
    stored["evidence"][0].update(p=1e-12, contradicts=True)
    stored.update(conclusion="contradicted", sentence="The audit contradicts the claim: made up for a test.")
    audit_file(place).write_text(json.dumps(stored))
    values = sign_report(report(place), place)
    assert values["warnings"][0].startswith("The audit contradicts the claim")
    check_report(render(values))
    silent = sign_report({**values, "warnings": values["warnings"][1:]}, place)
    with pytest.raises(CorruptState, match="does not follow"):
        check_report(render(silent))


def test_an_audit_of_an_older_record_is_refused(place: Workspace) -> None:
    audit_training("one", place)
    stored = json.loads(audit_file(place).read_text())
    audit_file(place).write_text(json.dumps({**stored, "record": "0" * 64}))
    with pytest.raises(CorruptState, match="make it again: quietsum audit one"):
        report(place)
    audit_file(place).unlink()
