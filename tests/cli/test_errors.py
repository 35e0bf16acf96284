"""Whatever goes wrong on the command line ends as one line on stderr and a stable exit code, never as a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import quietsum.cli
from quietsum.cli.app import app

RUN = ("--noise-multiplier", "1", "--sample-rate", "0.1", "--steps", "100", "--delta", "1e-5")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def process(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quietsum", *arguments],
        capture_output=True, text=True, timeout=60, env=os.environ | changes, encoding="utf-8", errors="replace",
    )  # fmt: skip


def changed(**changes: str) -> tuple[str, ...]:
    values = {"noise-multiplier": "1", "sample-rate": "0.1", "steps": "100", "delta": "1e-5"}
    values |= {name.replace("_", "-"): value for name, value in changes.items()}
    return tuple(word for name, value in values.items() for word in (f"--{name}", value))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"noise_multiplier": "0"}, "noise_multiplier = 0.0"),
        ({"noise_multiplier": "-1"}, "noise_multiplier = -1.0"),
        ({"noise_multiplier": "nan"}, "noise_multiplier = nan"),
        ({"noise_multiplier": "inf"}, "noise_multiplier = inf"),
        ({"sample_rate": "1.5"}, "sample_rate = 1.5"),
        ({"sample_rate": "-0.1"}, "sample_rate = -0.1"),
        ({"sample_rate": "nan"}, "sample_rate = nan"),
        ({"delta": "0"}, "delta = 0.0"),
        ({"delta": "1"}, "delta = 1.0"),
        ({"delta": "nan"}, "delta = nan"),
        ({"steps": "0"}, "steps = 0"),
        ({"steps": "-5"}, "steps = -5"),
        ({"steps": "9999999999999999999"}, "steps = 9999999999999999999"),
        ({"steps": "1.5"}, "--steps"),
        ({"steps": "many"}, "many"),
        ({"group": "0"}, "group = 0"),
        ({"group": "1000000000000"}, "group = 1000000000000"),
        ({"sampling": "sometimes"}, "sometimes"),
        ({"mechanism": "magic"}, "magic"),
        ({"mechanism": "pure"}, "step_epsilon"),
        ({"mechanism": "randomized-response"}, "keep_probability"),
        ({"neighbours": "friends"}, "friends"),
        ({"sampling": "none"}, "sample_rate = 0.1 contradicts"),
    ],
)
def test_a_bad_value_is_named_with_exit_code_2(changes: dict[str, str], named: str) -> None:
    result = invoke("spend", *changed(**changes))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("noise", ["1e300", "1e-300"])
@pytest.mark.parametrize("command", ["spend", "curve"])
def test_absurd_noise_is_refused(command: str, noise: str) -> None:
    result = invoke(command, *changed(noise_multiplier=noise))
    assert result.exit_code == 2
    assert "noise_multiplier = 1e" in result.stderr


def test_numbers_beyond_a_computer_end_as_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(*_: object, **__: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("quietsum.cli.account.spend.account", overflow)
    result = invoke("spend", *RUN)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "too large" in result.stderr


@pytest.mark.parametrize("missing", ["--noise-multiplier", "--sample-rate", "--steps", "--delta"])
def test_a_missing_value_is_named(missing: str) -> None:
    where = RUN.index(missing)
    result = invoke("spend", *RUN[:where], *RUN[where + 2 :])
    assert result.exit_code == 2
    assert missing.strip("-").replace("-", "_") in result.stderr.replace("-", "_")
    assert "missing" in result.stderr.lower()


@pytest.mark.parametrize("arguments", [("spent",), ("--colour",), ("spend", "--sigma", "1"), ("spend", "extra", *RUN)])
def test_unknown_commands_and_options_exit_with_2_and_point_to_the_help(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "--help" in result.stderr


def test_no_arguments_show_the_help() -> None:
    result = invoke()
    assert result.exit_code == 0
    for command in ("spend", "calibrate", "curve", "explain"):
        assert command in result.stdout
    assert result.stdout.count("Usage:") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["spend", "calibrate", "curve", "explain"])
def test_every_command_has_a_help_of_80_columns(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_version_is_the_package_s() -> None:
    assert invoke("--version").stdout == f"quietsum {quietsum.__version__}\n"


def test_a_real_process_ends_with_one_line_and_no_traceback() -> None:
    done = process("spend", *changed(delta="2"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: delta = 2.0 must lie strictly between 0 and 1")
    assert "Traceback" not in done.stderr


def test_output_to_a_file_has_no_colours_and_obeys_no_color() -> None:
    assert "\x1b" not in process("spend", *RUN).stdout
    forced = process("spend", *RUN, NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[3" not in forced.stdout


def test_a_terminal_that_knows_ascii_only_gets_an_answer() -> None:
    for arguments in (("spend", *RUN), ("curve", *RUN), ("explain", "sigma"), ("--help",)):
        done = process(*arguments, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()


def test_a_narrow_terminal_is_respected() -> None:
    done = process("spend", *RUN, COLUMNS="60")
    panel = [line for line in done.stdout.splitlines() if line.startswith(("╭", "│", "╰"))]
    assert panel
    assert max(map(len, panel)) <= 60


@pytest.mark.skipif(os.name != "posix", reason="pipes break differently elsewhere")
def test_a_reader_who_leaves_early_is_not_scolded() -> None:
    command = f"{sys.executable} -m quietsum explain --json"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -c 10; echo; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "141")


@pytest.mark.skipif(os.name != "posix", reason="signals differ elsewhere")
def test_an_interrupt_ends_with_130_and_no_traceback() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "quietsum", "spend", "--history", "-", "--delta", "1e-5"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell has its background ignore it
    )  # fmt: skip
    time.sleep(1.5)  # until it waits for the history
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.skipif(os.name != "posix", reason="signals differ elsewhere")
@pytest.mark.parametrize("module", ["quietsum.cli.app", "quietsum.cli.sites.party", "typer"])
def test_ctrl_c_while_the_commands_are_being_imported_ends_without_a_word(module: str) -> None:
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a test in the background inherits none
        "class Pressing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == sys.argv[1]: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressing())\n"
        "from quietsum.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, module], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_while_the_commands_are_put_together_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quietsum.cli.app.app", press)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        quietsum.cli.main()
    assert ended.value.code == 130 and signal.getsignal(signal.SIGINT) is before


MINE = """
from tiny import TinyTask
class Mine(TinyTask):
    def parties(self):
        return read("Ms Smith")
def read(name):
    raise {error}
"""


@pytest.mark.parametrize("error", ["ValueError(name)", "KeyError(name)", "RuntimeError(name)"])
def test_an_error_of_ones_own_code_is_one_line_that_says_where_and_quotes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(MINE.format(error=error))
    Path("run.toml").write_text('[task]\nname = "mine:Mine"\n[privacy]\nrecord = { epsilon = 2.0, delta = 1e-3 }\n')
    result = invoke("plan", "run.toml")
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    kind = error.partition("(")[0]
    assert f"({kind} in mine.py, line 7, read)" in result.stderr and "Smith" not in result.output
    assert not Path("quietsum-workspace").exists()
    monkeypatch.setenv("QUIETSUM_TRACEBACK", "1")
    assert type(invoke("plan", "run.toml").exception).__name__ == kind


def test_the_control_a_mistake_of_ours_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.cli.account import spend

    monkeypatch.setattr(spend, "print_json", None)  # the call fails in our own line
    assert isinstance(invoke("spend", *RUN, "--json").exception, TypeError)
