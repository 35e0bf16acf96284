"""What stands in the page about deployment, in the units and in the Containerfile exists: commands, options, files."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.errors import QuietsumError
from quietsum.federation.flower.door import DoorLimits
from quietsum.federation.flower.superlink import SuperLinkFailed
from quietsum.ledger.stores.protocol import StoreMustWait
from quietsum.party.policy_file import parse_policy, policy_keys
from quietsum.plan import load_plan

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
UNITS = sorted(DEPLOY.glob("*.service"))
HARDENED = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes"}


def fenced(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def lines_of(shell: str) -> list[str]:
    return [line for line in shell.replace("\\\n", " ").splitlines() if line.strip()]


def commands_in(line: str) -> list[list[str]]:
    """The words after ``quietsum`` where it is a command: the first word, or after sudo, docker or a path."""
    words = shlex.split(line)
    if words[:2] == ["docker", "build"]:
        return []
    called = [word == "quietsum" or word.endswith("/bin/quietsum") for word in words]
    if words[0] in ("sudo", "docker"):
        starts = [place for place in range(len(words)) if called[place] and words[place - 1] != "-u"]
        return [words[starts[0] + 1 :]] if starts else []
    return [words[1:]] if called[0] else []


def check_command(words: list[str]) -> None:
    """Raise where the command, a subcommand or an option is not there; nothing is run."""
    command: Any = typer.main.get_command(app)
    parent = None
    name = "quietsum"
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            raise AssertionError(f"{name} has no command {words[:1]}")
        parent = click.Context(command, info_name=name, parent=parent)
        name, words, command = words[0], words[1:], command.commands[words[0]]
    command.make_context(name, list(words), parent=parent)


IN_PAGE = [words for shell in fenced("bash") for line in lines_of(shell) for words in commands_in(line)]


@pytest.mark.parametrize("words", IN_PAGE, ids=" ".join)
def test_every_command_of_the_page_is_one(words: list[str]) -> None:
    check_command(words)


def test_the_page_shows_the_commands_that_a_deployment_needs() -> None:
    shown = {" ".join(words[:2]) if words[0] in ("keys", "party", "ledger") else words[0] for words in IN_PAGE}
    needed = {"run", "plan", "superlink", "party serve", "party new", "party check", "party status", "keys make"}
    needed |= {"keys node", "keys admit", "keys pki", "keys show", "ledger receipts", "ledger verify", "ledger raise"}
    assert needed <= shown


@pytest.mark.parametrize(
    "wrong", ["party serve --polcy policy.toml", "party sever", "superlink --port 9092", "kyes make"]
)
def test_a_command_that_is_none_would_be_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"No such option|has no command"):
        check_command(shlex.split(wrong))


def test_commands_in_running_text_exist() -> None:
    for text in re.findall(r"`quietsum ([^`]+)`", PAGE):
        words = [word for word in shlex.split(text) if word != "…"]
        command: Any = typer.main.get_command(app)
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, f"quietsum {text}"
            command, words = command.commands[words[0]], words[1:]
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= known, f"quietsum {text}"


# ------------------------------------------------------------------------------------------------- TOML, Python


def test_every_toml_of_the_page_loads(tmp_path: Path) -> None:
    kinds = []
    for text in fenced("toml"):
        tables = tomllib.loads(text)
        if "site" in tables:
            kinds.append("policy")
            parse_policy(text, "deploy.md")
        elif "federation" in tables:
            kinds.append("plan")
            (tmp_path / "run.toml").write_text(text, encoding="utf-8")
            load_plan(tmp_path / "run.toml")
        else:
            kinds.append("part")
            paths = {f"{table}.{key}" for table, keys in tables.items() for key in keys}
            assert paths <= set(policy_keys())
    assert {"policy", "plan"} <= set(kinds)


def test_a_wrong_key_in_the_page_would_be_found() -> None:
    (policy,) = (text for text in fenced("toml") if "[site]" in text)
    with pytest.raises(QuietsumError, match="smallest_noise"):
        parse_policy(policy.replace("smallest_noise", "smalest_noise"), "deploy.md")


def test_the_task_of_the_page_runs_by_the_policy_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (text for text in fenced("python") if "class Visits" in text)
    (policy,) = (text for text in fenced("toml") if "[site]" in text)
    plan = next(text for text in fenced("toml") if "[federation]" in text)
    module = "visits_of_the_page"  # a name that nothing else of this process has imported
    data = tmp_path / "visits.csv"
    data.write_text("age,pressure,stay,back\n61,150,3,1\n42,118,1,0\n", encoding="utf-8")
    (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    policy = policy.replace("visits:", f"{module}:").replace("/srv/data/visits.csv", str(data))
    (tmp_path / "policy.toml").write_text(policy.replace("/var/lib/quietsum/", ""), encoding="utf-8")
    plan = plan.replace('"heart"', f'"{module}:Visits"').replace('["cleveland", "hungarian"]', '["north", "south"]')
    (tmp_path / "run.toml").write_text(plan, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert CliRunner().invoke(app, ["keys", "make", "keys", "--party", "north"]).exit_code == 0
    for name in ("node.key", "ca.crt"):
        (tmp_path / "keys" / "north" / name).rename(tmp_path / name)
    answer = CliRunner().invoke(app, ["party", "check", "policy.toml", "--plan", "run.toml", "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output)["refused"] == ""

    from quietsum.tasks import task_named

    task = task_named(f"{module}:Visits", {"path": str(data)})
    rows = task.rows("north")
    gradients = task.gradients(np.ones(task.dimension), rows.features, rows.labels)
    assert len(rows) == 2 and gradients.shape == (2, task.dimension)
    with pytest.raises(QuietsumError, match="no file"):
        task_named(f"{module}:Visits").look_for_data("north")  # type: ignore[attr-defined]
    data.write_text("age,pressure,stay,back\n61,150,3,1\nMs Smith,118\n42,118,1,0\n", encoding="utf-8")
    marred = task.rows("north")  # a line that cannot be read costs the others nothing
    np.testing.assert_array_equal(marred.features[[0, 2]], rows.features)
    assert task.evaluate(task.initial()).on


# ------------------------------------------------------------------------------------------- units, Containerfile


def read_unit(path: Path) -> configparser.ConfigParser:
    """As systemd would, except that no key here is stated twice: then this raises."""
    found = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",), comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text(encoding="utf-8"))
    return found


def test_both_units_are_there() -> None:
    assert [path.name for path in UNITS] == ["quietsum-party.service", "quietsum-superlink.service"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_hardened_and_starts_a_command_that_exists(path: Path) -> None:
    unit = read_unit(path)
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    assert HARDENED.items() <= dict(service).items()
    assert service["User"] == "quietsum" and service["Restart"] == "on-failure"
    words = shlex.split(service["ExecStart"])
    assert words[0] == "/opt/quietsum/bin/quietsum"
    check_command(words[1:])
    state = service["ReadWritePaths"]
    assert state == f"/var/lib/{service['StateDirectory']}"
    assert all(word.startswith((state, "/etc/quietsum")) for word in words[1:] if word.startswith("/"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_takes_no_more_than_its_share_of_the_machine(path: Path) -> None:
    service = read_unit(path)["Service"]
    assert re.fullmatch(r"\d+G|\d\d%", service["MemoryMax"])
    assert int(service["TasksMax"]) <= 1024 and int(service["LimitNOFILE"]) >= 4 * DoorLimits().strangers


def test_a_site_may_not_open_a_port_and_a_broken_ledger_is_not_started_again() -> None:
    service = read_unit(DEPLOY / "quietsum-party.service")["Service"]
    assert service["SocketBindDeny"] == "any"
    assert "4" in service["RestartPreventExitStatus"].split(), "exit code 4: the ledger is not in order"


@pytest.mark.parametrize(("unit", "codes"), [("quietsum-superlink", {2}), ("quietsum-party", {2, 4})])
def test_a_service_is_started_again_after_trouble_that_may_pass(unit: str, codes: set[int]) -> None:
    service = read_unit(DEPLOY / f"{unit}.service")["Service"]
    assert service["Restart"] == "on-failure" and set(map(int, service["RestartPreventExitStatus"].split())) == codes
    assert {SuperLinkFailed.exit_code, StoreMustWait.exit_code}.isdisjoint(codes), "a taken port, a full disk"
    assert {QuietsumError.exit_code} <= codes, "the control: a wrong word"


def test_a_roster_is_read_again_on_reload() -> None:
    service = read_unit(DEPLOY / "quietsum-superlink.service")["Service"]
    words = shlex.split(service["ExecReload"])
    assert words[:2] == ["/bin/sh", "-c"] and "kill -HUP" in words[2], "a small system has no /bin/kill"
    assert service["RestartForceExitStatus"] == "SIGHUP", "a signal before anybody listens for it ends the process"


def judged(text: str, path: Path) -> str:
    """What systemd itself says about a unit; nothing where it is fine."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    path.write_text(text.replace("/opt/quietsum/bin/quietsum", "/bin/sh"), encoding="utf-8")
    done = subprocess.run([program, "verify", str(path)], capture_output=True, text=True, timeout=60)
    return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if path.name in line)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert judged(text, tmp_path / path.name) == ""
    for wrong in (text.replace("UMask=", "Umaks="), text.replace("=yes", "=perhaps")):
        assert judged(wrong, tmp_path / path.name) != ""


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_runs_quietsum_as_nobody_in_particular() -> None:
    found = dict(instructions())  # the last of each kind, which is what counts
    assert {word for word, _ in instructions()} <= {
        "ARG", "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert json.loads(found["ENTRYPOINT"]) == ["quietsum"] and json.loads(found["CMD"]) == ["--help"]
    assert found["USER"].split(":")[0] not in ("", "0", "root")
    assert found["VOLUME"] == found["WORKDIR"] == "/var/lib/quietsum" and found["STOPSIGNAL"] == "SIGTERM"


def test_the_container_installs_extras_that_exist_and_sees_no_key_or_ledger() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [rest.partition("=")[2].split(",") for word, rest in instructions() if rest.startswith("EXTRAS=")]
    assert extras and set(extras[0]) <= set(project["optional-dependencies"])
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines, "what is not named stays out"
    assert kept == {"src", "pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]}
    assert all((ROOT / name).exists() for name in kept)


def test_links_of_the_page_to_files_of_the_repository_hold() -> None:
    for name in re.findall(r"`(deploy/[\w.-]+)`|(deploy/[\w.-]+\.service)", PAGE):
        assert (ROOT / "".join(name)).exists()
