"""``quietsum keys`` from the first folder to the last warning, as people and as programs read it."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.identity.certificates import read_certificates
from quietsum.identity.keyring import make_keyring
from quietsum.identity.nodekeys import read_parties

pytestmark = pytest.mark.usefixtures("empty_folder")


def quietsum(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "--json" in arguments or max(map(len, result.stdout.splitlines()), default=0) <= 80
    return result


def made(*more: object) -> Result:
    return quietsum("keys", "make", "keys", "--server", "fl.example.org", "--party", "Basel", *more)


def test_a_trial_from_the_first_folder_to_a_party_with_its_own_key() -> None:
    result = made("--party", "Zürich Nord", "--server", "10.0.0.7", "--days", 90)
    assert result.exit_code == 0, result.output
    assert "Hand each party its own folder" in result.output
    assert quietsum("keys", "add", "keys", "--party", "Cleveland").exit_code == 0
    assert quietsum("keys", "node", "own").exit_code == 0
    assert quietsum("keys", "admit", "keys", "own/node.pub", "--party", "Own").exit_code == 0
    shown = quietsum("keys", "show", "keys")
    assert shown.exit_code == 0 and "fl.example.org" in shown.output and "WARN" not in shown.output
    for party in ("Basel", "Zürich Nord", "Cleveland", "Own"):
        assert party in shown.output
    assert list(read_parties(Path("keys/parties.toml"))) == ["Basel", "Zürich Nord", "Cleveland", "Own"]
    server, authority = (read_certificates(Path(f"keys/{name}.crt"))[0] for name in ("server", "ca"))
    assert (server.not_valid_after_utc - server.not_valid_before_utc).days == 90
    assert server.issuer == authority.subject


def test_json_says_the_same_and_holds_no_private_key() -> None:
    values = json.loads(made("--json").stdout)
    assert values == json.loads(quietsum("keys", "show", "keys", "--json").stdout)
    assert values["server"]["names"] == ["fl.example.org", "localhost", "127.0.0.1", "::1"]
    assert values["parties"] == [
        {"party": "Basel", "fingerprint": values["parties"][0]["fingerprint"], "private_key_here": True}
    ]
    assert values["warnings"] == [] and "PRIVATE" not in json.dumps(values)
    added = json.loads(quietsum("keys", "add", "keys", "--party", " Geneva ", "--json").stdout)
    assert added["party"] == "Geneva" and added["fingerprint"].startswith("SHA256:")
    own = json.loads(quietsum("keys", "node", "own", "--json").stdout)
    admitted = json.loads(quietsum("keys", "admit", "keys", "own/node.pub", "--party", "Own", "--json").stdout)
    assert admitted["fingerprint"] == own["fingerprint"]
    assert "server.key" in json.loads(quietsum("keys", "pki", "--json").stdout)["coordinator"]


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_warnings_are_shown() -> None:
    made("--days", 20)
    Path("keys/server.key").chmod(0o644)
    shown = quietsum("keys", "show", "keys")
    assert shown.exit_code == 0
    assert shown.output.count("WARN") == 3 and "in 19 days" in shown.output and "mode 644" in shown.output


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (("make", "keys", "--party", "a/b"), "folder's name"),
        (("make", "keys", "--party", "A", "--party", "a"), "only by its writing"),
        (("make", "keys", "--party", "A", "--server", "x:80"), "without port"),
        (("make", "keys", "--party", "A", "--days", "0"), "days"),
        (("make", "keys", "--party", "A", "--days", "many"), "--days"),
        (("add", "none", "--party", "A"), "has no ca.crt"),
        (("show", "none"), "has no ca.crt"),
        (("admit", "none", "none.pub", "--party", "A"), "does not exist"),
        (("admit", "none", ".", "--party", "A"), "is a folder"),
        (("add", "none"), "--party"),
    ],
)
def test_mistakes_are_one_line_and_make_nothing(tmp_path: Path, arguments: tuple[str, ...], lesson: str) -> None:
    result = quietsum("keys", *arguments)
    assert result.exit_code == 2 and lesson in result.output and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_second_make_changes_nothing() -> None:
    made()
    before = Path("keys/parties.toml").read_bytes()
    result = made()
    assert result.exit_code == 2 and "exists already" in result.output
    assert Path("keys/parties.toml").read_bytes() == before


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    made()
    Path("keys/server.crt").write_bytes(Path("keys/server.crt").read_bytes()[:100])
    result = quietsum("keys", "show", "keys")
    assert result.exit_code == 2 and "server.crt holds no whole PEM certificate" in result.output


def test_the_text_about_an_existing_pki_names_the_files_and_the_names_that_are_needed() -> None:
    text = quietsum("keys", "pki").stdout
    for word in ("ca.crt", "server.crt", "server.key", "SAN", "dial", "node.pub", "keys admit"):
        assert word in text


def test_a_certificate_that_has_ended_is_an_exit_code_for_monitoring() -> None:
    today = datetime.datetime.now(datetime.UTC)
    for days, code, told in ((10.5, 2, "has expired"), (9.5, 0, "in less than a day"), (8.5, 0, "in 1 day\n")):
        folder = Path(f"keys-{days}")
        make_keyring(folder, servers=[], parties=["Basel"], days=10, now=today - datetime.timedelta(days=days))
        shown = quietsum("keys", "show", folder)
        assert shown.exit_code == code and told in shown.output, shown.output
        values = quietsum("keys", "show", folder, "--json")
        assert values.exit_code == code and json.loads(values.stdout)["expired"] == (code == 2)
