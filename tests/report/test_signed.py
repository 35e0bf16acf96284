"""A signed report is checked on a clean machine: an altered byte, a changed figure and a forger's key are all found."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quietsum import report
from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken
from quietsum.ledger import Ledger, SigningKey, message_to_sign
from quietsum.report import check_report, render
from quietsum.report.facts.protection import NINE
from quietsum.report.facts.sections import hash_utility
from quietsum.report.signed.schema import complain, report_schema, require_form
from quietsum.report.verifier import (
    Broken,
    check_export,
    check_key,
    check_signed,
    fingerprint_of,
    main as verify_alone,
    message_of,
    read_document,
)
from quietsum.runs import Workspace
from scenes import invoke, quietsum, tiny_toml

HERE = Path(__file__).parent
OLD = HERE.parent / "old_books"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace with one run, its export beside it; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("signed")
    plan = folder / "run.toml"
    plan.write_text(tiny_toml(), encoding="utf-8")
    quietsum("run", plan, "--name", "run", "--workspace", folder / "w")
    quietsum("ledger", "export", folder / "export.jsonl", "--workspace", folder / "w")
    yield folder


@pytest.fixture
def content(place: Path) -> bytes:
    return (place / "w" / "runs" / "run" / "report.json").read_bytes()


@pytest.fixture
def export(place: Path) -> bytes:
    return (place / "export.jsonl").read_bytes()


def fingerprint(content: bytes) -> str:
    return str(json.loads(content)["ledger"]["fingerprint"])


def own_key(place: Path) -> SigningKey:
    from quietsum.ledger import load_key

    with Ledger.open(place / "w" / "ledger.db", read_only=True) as ledger:
        return load_key(place / "w" / "ledger.db", ledger.identity.public_key)


def signed_anew(values: dict[str, Any], key: SigningKey) -> bytes:
    """``values`` as their own maker would sign them."""
    said = {name: value for name, value in values.items() if name != "signature"}
    signature = key.sign(message_to_sign(message_of(said)))
    mark = {
        "format": "quietsum-report-1", "algorithm": "Ed25519", "public_key": key.public.hex, "signature": signature
    }  # fmt: skip
    return render({**said, "signature": mark})


# --------------------------------------------------------------------------------------------------- it holds


def test_an_honest_report_holds_with_everything_checked(content: bytes, export: bytes, place: Path) -> None:
    model = (place / "w" / "runs" / "run" / "model.safetensors").read_bytes()
    found = check_report(content, export=export, key=fingerprint(content), files={"model.safetensors": model})
    assert found.unchecked == () and found.run == "run"
    assert {name for name, _ in found.checked} == {
        "signature", "key", "figures", "utility", "file", "ledger", "plan", "rounds"
    }  # fmt: skip


def test_what_was_not_given_is_said_not_to_be_checked(content: bytes) -> None:
    found = check_report(content)
    assert [name for name, _ in found.unchecked] == ["key", "file", "ledger"]


def test_the_command_says_both_and_ends_with_nought(place: Path, content: bytes) -> None:
    path = place / "w" / "runs" / "run" / "report.json"
    done = quietsum("report", "--verify", path, "--export", place / "export.jsonl")
    assert "NOT CHECKED  key" in done.stdout and fingerprint(content) in done.stdout
    done = quietsum("report", "--verify", path, "--key", fingerprint(content)[:32])
    assert "NOT CHECKED  key" not in done.stdout and "NOT CHECKED  ledger" in done.stdout
    assert json.loads(quietsum("report", "--verify", path, "--json").stdout)["not_checked"][0]["name"] == "key"


def test_the_check_needs_neither_torch_nor_a_workspace(content: bytes, export: bytes, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(content)
    (tmp_path / "export.jsonl").write_bytes(export)
    code = """
import sys
from quietsum.report import check_report
found = check_report(open("report.json", "rb").read(), export=open("export.jsonl", "rb").read())
heavy = {"torch", "opacus", "flwr", "sklearn", "mlflow"} & set(sys.modules)
print([name for name, _ in found.unchecked], sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['key', 'file'] []", done.stderr


def test_the_verifier_alone_needs_nothing_of_quietsum(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(content)
    source = Path(sys.modules[check_signed.__module__].__file__ or "")
    script = shutil.copy(source, tmp_path / "verifier.py")
    code = (
        f"import sys, runpy; sys.modules['quietsum'] = None; sys.argv = ['v', 'report.json', '--key', "
        f"'{fingerprint(content)}']; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the one that you named" in done.stdout, done.stderr


# --------------------------------------------------------------------------------------------------- flipped bytes


def flips(content: bytes, stride: int) -> Iterator[tuple[int, bytes]]:
    for place in range(0, len(content), stride):
        other = bytearray(content)
        other[place] ^= 1 << (place % 8)
        yield place, bytes(other)


def unfound(content: bytes, check: Callable[[bytes], Any], stride: int) -> list[int]:
    found = []
    for place, other in flips(content, stride):
        try:
            check(other)
        except (Broken, CorruptState, LedgerBroken):
            continue
        found.append(place)
    return found


def check_bytes(content: bytes) -> None:
    check_signed(read_document(content))


@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_anywhere_in_the_report_is_found(content: bytes, stride: int) -> None:
    check_bytes(content)
    assert unfound(content, check_bytes, stride) == []


@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_anywhere_in_the_export_is_found(content: bytes, export: bytes, stride: int) -> None:
    values = json.loads(content)
    key, head = values["ledger"]["public_key"], values["ledger"]["head"]

    def check(other: bytes) -> None:
        check_export(other, key, head)

    check(export)
    assert unfound(export, check, stride) == []


def test_a_flipped_bit_in_the_signature_of_an_older_entry_is_found_by_both_checks(
    content: bytes, export: bytes
) -> None:
    """No hash covers it, so it takes a look at every signature."""
    values = json.loads(content)
    key, head = values["ledger"]["public_key"], values["ledger"]["head"]
    place = export.index(b'"signature":"', export.index(b"\n")) + 20
    other = bytearray(export)
    other[place] = ord("1") if other[place] != ord("1") else ord("2")
    with pytest.raises(Broken, match="signature"):
        check_export(bytes(other), key, head)
    with pytest.raises(LedgerBroken, match="not signed"):
        check_report(content, export=bytes(other))


def test_the_control_a_check_that_leaves_out_the_signature_misses_flips(content: bytes) -> None:
    assert len(unfound(content, read_document, 97)) > 50


def test_other_blanks_and_another_order_are_found(content: bytes) -> None:
    values = json.loads(content)
    for text in (json.dumps(values), json.dumps(values, indent=1), content.decode() + " ", "\n" + content.decode()):
        with pytest.raises(CorruptState, match="not written as quietsum writes it"):
            check_report(text.encode())
    twice = content.replace(b'{\n  "target_epsilon"', b'{\n  "run": "other",\n  "target_epsilon"', 1)
    with pytest.raises(CorruptState):
        check_report(twice)


# ------------------------------------------------------------------------------------------------------ forgeries


def test_a_forgery_with_another_key_passes_without_a_fingerprint_and_fails_with_it(
    place: Path, content: bytes, tmp_path: Path
) -> None:
    """All of another ledger fits together: the fingerprint alone tells."""
    plan = tmp_path / "run.toml"
    plan.write_text(tiny_toml(record="{ epsilon = 0.1, delta = 1e-3 }"), encoding="utf-8")
    quietsum("run", plan, "--name", "run", "--workspace", tmp_path / "w")
    forged = (tmp_path / "w" / "runs" / "run" / "report.json").read_bytes()
    assert check_report(forged).unchecked[0][0] == "key"
    with pytest.raises(CorruptState, match="not the one you named"):
        check_report(forged, key=fingerprint(content))
    path = tmp_path / "w" / "runs" / "run" / "report.json"
    assert invoke("report", "--verify", path, "--key", fingerprint(content)).exit_code == 4
    assert invoke("report", "--verify", path, "--export", place / "export.jsonl").exit_code == 4


def test_a_report_whose_inner_key_is_not_the_signers_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptState, match="another ledger's key"):
        check_report(signed_anew(json.loads(content), SigningKey.generate()))


def test_an_unsigned_report_is_refused(content: bytes) -> None:
    values = json.loads(content)
    del values["signature"]
    with pytest.raises(CorruptState, match="not signed"):
        check_report(render(values))


def changed(values: dict[str, Any], path: str, to: Any) -> dict[str, Any]:
    other = copy.deepcopy(values)
    part: Any = other
    *names, last = path.split(".")
    for name in names:
        part = part[int(name)] if isinstance(part, list) else part[name]
    part[int(last) if isinstance(part, list) else last] = to(part[int(last) if isinstance(part, list) else last])
    return other


LOWER = (
    "target_epsilon", "target_delta", "achieved_epsilon", "max_grad_norm", "sampling_probability",
    "guarantees.0.epsilon", "guarantees.1.epsilon_lower", "guarantees.0.delta", "limits.0.epsilon", "spent.1.epsilon",
    "privacy.units.0.epsilon", "privacy.units.0.epsilon_lower", "privacy.units.0.delta",
    "privacy.units.0.sampling.rate",
    "privacy.units.0.budget.epsilon", "privacy.units.0.profile.3.1", "privacy.units.0.profile.0.1",
    "privacy.units.0.trade_off.9.1", "privacy.units.0.gaussian.mu", "privacy.units.0.gaussian.slack",
    "privacy.units.0.attacker.right", "privacy.units.0.attacker.found", "privacy.units.0.attacker.odds",
    "privacy.units.0.by_round.rows.1.1", "privacy.units.0.forecast.rows.2.1",     "utility.scores.0.value",
)  # fmt: skip


@pytest.mark.parametrize("path", LOWER)
def test_a_maker_who_signs_a_smaller_figure_is_found(place: Path, content: bytes, path: str) -> None:
    """The ledger's own key signs: the signature holds, and the figure does not."""
    less = changed(json.loads(content), path, lambda value: value * 0.9 if value else 0.25)
    with pytest.raises(CorruptState):
        check_report(signed_anew(less, own_key(place)))


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("training_steps", 2), ("mechanism", "DP-SGD (Laplace)"), ("accounting", "rdp"),
        ("privacy.units.0.steps", 2), ("privacy.units.0.stages.0.noise_multiplier", 99.0),
        ("privacy.units.0.against", ["server"]), ("guarantees.0.unit", "person"),
        ("guarantees.0.neighbours", "replace-one"), ("privacy.units.0.binding", False),
        ("privacy.units.0.gaussian", None), ("privacy.units.0.profile", []),
        ("sentences.0", "No one can be right more often than 50.1 % of the time: ε ≤ 0.1 per record."),
        ("protected.0", "one record: ε ≤ 0.5"), ("format", 2), ("ledger.head.sequence", 3),
        ("noise_multiplier", 99.0), ("limit.epsilon", 0.1), ("metrics.0.value", 0.99), ("verdict", "As good as any."),
        ("privacy.units.0.group_size", 7), ("privacy.units.0.whom", "nobody"), ("privacy.units.0.dataset", "another"),
        ("privacy.units.0.worst_party", "another"), ("guarantees.0.certified", False),
        ("privacy.units.0.by_round.rows.0.0", 10**30), ("privacy.units.0.by_round.rows.1.0", 1),
        ("privacy.units.0.by_round.rows.0.0", "0.1"), ("privacy.units.0.by_round.rows.0.1", None),
        ("privacy.units.0.forecast.rows.0.0", -1), ("privacy.units.0.forecast.rows.0.0", None),
    ],
)  # fmt: skip
def test_a_maker_who_signs_something_else_is_found(place: Path, content: bytes, path: str, to: Any) -> None:
    with pytest.raises(CorruptState):
        check_report(signed_anew(changed(json.loads(content), path, lambda _: to), own_key(place)))


def test_a_page_beside_the_report_that_says_something_else_is_found(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(content)
    page = report.render_page(json.loads(content))
    (tmp_path / "mine.html").write_text(page, encoding="utf-8")
    assert "says what report.json says" in quietsum("report", "--verify", tmp_path / "mine.json").stdout.replace(
        "\n             ", " "
    )
    (tmp_path / "mine.html").write_text(page.replace("ε", "e", 1), encoding="utf-8")
    assert "does not say what report.json says" in quietsum(
        "report", "--verify", tmp_path / "mine.json", code=4
    ).stderr.replace("\n", " ")


def test_another_plans_digest_is_found_by_the_export(place: Path, content: bytes, export: bytes) -> None:
    other = signed_anew({**json.loads(content), "plan_digest": "0" * 64}, own_key(place))
    with pytest.raises(CorruptState, match="plan_digest"):
        check_report(other, export=export)


def test_the_control_a_report_that_is_signed_anew_unchanged_holds(place: Path, content: bytes) -> None:
    assert signed_anew(json.loads(content), own_key(place)) == content
    check_report(signed_anew(json.loads(content), own_key(place)))


def test_a_charge_that_was_never_paid_is_found_by_the_export(place: Path, content: bytes, export: bytes) -> None:
    """A whole report of another charge is consistent in itself; the ledger says what was paid."""
    folder, workspace = Workspace.at(place / "w").find("run"), Workspace.at(place / "w")
    values = report.build(folder, workspace)
    charge = values["privacy"]["units"][0]["charge"]
    values["privacy"]["units"][0].update(charge={**charge, "party": "elsewhere"}, worst_party="elsewhere")
    other = signed_anew(values, own_key(place))
    check_report(other)
    with pytest.raises(CorruptState, match="no such charge"):
        check_report(other, export=export)


@pytest.mark.parametrize(
    ("path", "to", "problem"),
    [
        ("parties.0.size", 13, "declares"), ("plan.federation.rounds", 4, "plan"),
        ("spent.0.epsilon", None, "broken"), ("parties", [], "leaves out"), ("run", "other", "no run"),
    ],
)  # fmt: skip
def test_what_the_ledger_says_otherwise_is_found(
    place: Path, content: bytes, export: bytes, path: str, to: Any, problem: str
) -> None:
    other = changed(json.loads(content), path, lambda _: to)
    if path == "spent.0.epsilon":  # in both places, so that the report alone fits together
        other = changed(json.loads(content), path, lambda value: value / 2)
        other = changed(other, "privacy.units.0.by_round.rows.0.1", lambda value: value / 2)
    with pytest.raises((CorruptState, LedgerBroken), match=problem):
        check_report(signed_anew(other, own_key(place)), export=export)


def test_an_export_of_before_the_report_is_refused(content: bytes, export: bytes) -> None:
    lines = export.split(b"\n")
    with pytest.raises(LedgerBroken, match="cut off"):
        check_report(content, export=b"\n".join(lines[:-3]) + b"\n")


def test_scores_are_held_to_the_files(place: Path, content: bytes) -> None:
    values = changed(json.loads(content), "utility.scores.0.value", lambda _: 0.99)
    values = changed(values, "metrics.0.value", lambda _: 0.99)
    values["utility"]["sha256"] = hash_utility(values["utility"], values["artefacts"])
    assert check_report(signed_anew(values, own_key(place)))  # its maker can lie about scores; nothing else could tell
    with pytest.raises(CorruptState, match=r"model\.safetensors is not the file"):
        check_report(content, files={"model.safetensors": b"another model"})


@pytest.mark.parametrize("key", ["", "abc", "z" * 40, "0" * 65])
def test_a_word_that_is_no_fingerprint_is_a_mistake_and_no_verdict(content: bytes, key: str) -> None:
    with pytest.raises(InvalidParameter):
        check_report(content, key=key)


def test_a_fingerprint_may_be_written_as_people_write_it(content: bytes) -> None:
    key = json.loads(content)["ledger"]["public_key"]
    text = fingerprint_of(key).upper()
    check_key(key, ":".join(text[place : place + 4] for place in range(0, 64, 4)))
    check_key(key, key)
    with pytest.raises(Broken):
        check_key(key, "0" * 32)


# ------------------------------------------------------------------------------------------- strangers' files


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]\n", b"null\n", b"[" * 100_000, b'{"a": NaN}\n', b"\xff\xfe", b'{"a": 1e999}\n',
             b'{"a": ' + b"9" * 10_000 + b"}\n", b'{\n  "signature": 3\n}\n']
)  # fmt: skip
def test_what_is_no_report_is_one_line_and_exit_code_4(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "report.json").write_bytes(text)
    done = invoke("report", "--verify", tmp_path / "report.json")
    assert done.exit_code == 4 and done.output.count("\n") == 1
    assert verify_alone([str(tmp_path / "report.json")]) == 4


def test_a_folder_or_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    assert invoke("report", "--verify", tmp_path).exit_code == 2
    assert invoke("report", "--verify", tmp_path / "none.json").exit_code == 2
    assert invoke("report", "--verify", tmp_path / "none.json", "--pack", "x.zip").exit_code == 2


@pytest.mark.parametrize("field", ["profile", "trade_off", "stages"])
def test_a_report_that_asks_for_endless_work_is_refused_by_its_form(content: bytes, field: str) -> None:
    values = json.loads(content)
    values["privacy"]["units"][0][field] = [[0.0, 0.5]] * 100_000
    with pytest.raises(CorruptState, match="has more than"):
        require_form(values)


# ---------------------------------------------------------------------------------------------- form and kinds


def test_the_nine_names_stand_on_top_and_older_keys_are_kept(content: bytes) -> None:
    values = json.loads(content)
    assert tuple(values)[:9] == NINE
    assert values["target_epsilon"] == values["limit"]["epsilon"] == 2.0 and values["target_delta"] == 1e-3
    assert values["achieved_epsilon"] == values["guarantees"][0]["epsilon"] <= values["target_epsilon"]
    assert (values["max_grad_norm"], values["sampling_probability"], values["training_steps"]) == (1.0, 0.5, 3)
    assert (values["mechanism"], values["accounting"]) == ("DP-SGD (Gaussian)", "exact")
    old = json.loads((OLD / "before_rooms" / "workspace" / "runs" / "finished" / "report.json").read_text())
    assert set(old) <= set(values) and old["format"] == values["format"]
    assert set(old["ledger"]) <= set(values["ledger"])


def test_the_published_schema_is_the_one_in_the_package_and_holds(content: bytes) -> None:
    docs = HERE.parents[1] / "docs" / "reference" / "report.schema.json"
    assert json.loads(docs.read_text(encoding="utf-8")) == report_schema()
    assert complain(report_schema(), json.loads(content), root=report_schema()) == ""
    assert set(NINE) <= set(report_schema()["required"])


@pytest.mark.parametrize(
    ("path", "to"),
    [("target_epsilon", "1"), ("guarantees.0.epsilon", -1.0), ("training_steps", True), ("round", 1.5),
     ("artefacts.0.file", "../model"), ("ledger.public_key", "AB" * 32), ("privacy.units.0.unit", "patient")],
)  # fmt: skip
def test_the_schema_refuses_what_it_should(content: bytes, path: str, to: Any) -> None:
    other = changed(json.loads(content), path, lambda _: to)
    assert complain(report_schema(), other, root=report_schema())


@pytest.mark.parametrize("run", ["asked", "finished", "groups", "hybrid", "secure", "stopped"])
def test_every_kind_of_older_run_has_a_report_that_holds(tmp_path: Path, run: str) -> None:
    place = shutil.copytree(OLD / "before_rooms", tmp_path / "books")
    for path in place.glob("workspace/ledger.db*"):
        path.chmod(0o600)
    quietsum("report", run, "--workspace", place / "workspace", "-o", place / "new.html")
    quietsum("ledger", "export", place / "export.jsonl", "--workspace", place / "workspace")
    quietsum("report", "--verify", place / "new.json", "--export", place / "export.jsonl")
    values = json.loads((place / "new.json").read_text())
    assert complain(report_schema(), values, root=report_schema()) == ""
    assert values["kind"] == ("questions" if run == "asked" else "federation")


def test_style_none_has_a_report_that_promises_nothing_and_holds(tmp_path: Path) -> None:
    text = tiny_toml(options='{ public = "made up" }').replace(
        "record = { epsilon = 2.0, delta = 1e-3 }", 'style = "none"'
    )
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    quietsum("run", tmp_path / "run.toml", "--name", "open", "--workspace", tmp_path / "w")
    path = tmp_path / "w" / "runs" / "open" / "report.json"
    values = json.loads(path.read_text())
    assert (values["achieved_epsilon"], values["target_epsilon"]) == ("Infinity", None)
    quietsum("report", "--verify", path)


def test_a_workspace_without_its_key_gives_an_unsigned_report(place: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(place / "w", tmp_path / "w")
    (copied / "ledger.db.key").unlink()
    done = quietsum("report", "run", "--workspace", copied, "-o", tmp_path / "page.html")
    assert "not signed" in done.output
    assert invoke("report", "--verify", tmp_path / "page.json").exit_code == 4
    assert invoke("report", "run", "--workspace", copied, "--pack", tmp_path / "out.zip").exit_code == 2


def test_the_report_is_the_same_however_often_it_is_made(place: Path, content: bytes, tmp_path: Path) -> None:
    quietsum("report", "run", "--workspace", place / "w", "-o", tmp_path / "page.html")
    assert (tmp_path / "page.json").read_bytes() == content
    assert (tmp_path / "page.html").read_text() == (place / "w" / "runs" / "run" / "report.html").read_text()


def test_findings_about_parties_are_in_the_operators_edition_alone(tmp_path: Path) -> None:
    """Rule 5: what a rule made of a party is not in a report for recipients."""
    place = shutil.copytree(OLD / "before_rooms", tmp_path / "books")
    for path in (*place.glob("workspace/ledger.db*"), *place.rglob("run.db")):
        path.chmod(0o600)
    quietsum("report", "groups", "--workspace", place / "workspace", "-o", place / "open.html")
    quietsum("report", "groups", "--operator", "--workspace", place / "workspace")
    folder = place / "workspace" / "runs" / "groups"
    private = json.loads((folder / "operator-report.json").read_text())
    public = json.loads((place / "open.json").read_text())
    assert private["edition"] == "operator" and private["operator_only"]["groups"]["judged"] > 0
    assert public["edition"] == "recipients" and "operator_only" not in public
    assert (folder / "operator-report.json").stat().st_mode & 0o077 == 0
    page = (folder / "operator-report.html").read_text()
    assert "operator" in page and "for the operator alone" not in (place / "open.html").read_text()
    quietsum("report", "--verify", folder / "operator-report.json")
