"""``quietsum run``: what a person sees, what a program reads, how it ends, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ledger.build import tamper
from quietsum.errors import TooFewParties
from quietsum.federation import Federation, LocalFederation
from quietsum.ledger import Ledger
from quietsum.plan import load_plan, resolve
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_named
from scenes import invoke, tiny_toml

TINY = tiny_toml()
PUBLIC = TINY.replace('TinyTask"', 'TinyTask"\noptions = { public = "made up for a test" }')
NONE = PUBLIC.replace("record = { epsilon = 2.0, delta = 1e-3 }", 'style = "none"')
FAST = PUBLIC + 'noise = "fast"\n'
REFUSING = TINY.replace("rounds = 3", 'rounds = 3\nsimulate = { refusing = ["north", "south"] }')
NO_GUARANTEE = "NO PRIVACY GUARANTEE"


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def _at_a_keyboard() -> Iterator[None]:
    """Ctrl-C is heard, also where these tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(text: str = TINY, *more: object, name: str = "run", code: int = 0) -> Result:
    """Run the plan ``text`` in the usual workspace of this folder."""
    Path("run.toml").write_text(text, encoding="utf-8")
    result = invoke("run", "run.toml", "--name", name, *more)
    assert result.exit_code == code, result.output
    return result


def interrupted(text: str = TINY, after: int = 1) -> None:
    """The same run, stopped by hand after a round, as Ctrl-C stops it."""

    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == after:
                raise KeyboardInterrupt

    plan = load_plan(text)
    task = task_named(plan.task.name, plan.task.options)
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=Workspace.at(), name="run", task=task, watchers=[Stop()])


def next_command(result: Result) -> list[str]:
    """The arguments of the command that ``result`` ends with."""
    last = result.stdout.split("next: ")[-1].replace("\\\n", " ")
    program, *arguments = shlex.split(last)
    assert program.endswith("quietsum")
    return arguments


def words(text: str) -> str:
    """``text`` without its line breaks."""
    return " ".join(text.split())


def spent() -> dict[str, float]:
    with Ledger.open(Workspace.at().ledger) as ledger:
        return {party: found.epsilon for (party, _), found in ledger.spending_by_party("run").items()}


# ------------------------------------------------------------------------------------------------- people


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """The demo as ``quietsum new`` writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("heart"))
        assert invoke("new", "run.toml").exit_code == 0
        result = invoke("run", "run.toml", "--name", "demo")
        assert result.exit_code == 0, result.output
        chain = [result]
        while "next: " in chain[-1].stdout and len(chain) < 5:
            chain.append(invoke(*next_command(chain[-1])))
        result.chain = chain[1:]  # type: ignore[attr-defined]
        yield result


def test_heart_is_introduced_run_and_summed_up(heart: Result) -> None:
    shown = words(heart.stdout)
    for said in (
        "heart disease at four hospitals", "cleveland, hungarian, switzerland, va; 20 rounds",
        "budget ε = 1 per record at δ = 1e-05", "noise multiplier",
        "No lifetime budget is used: the UCI heart data is published", "Run it as often as you like",
        "accuracy is measured on 254 published hold-out rows", "round 20/20 · 4 of 4 parties · accuracy",
        "either the server nor anyone who receives the models can tell", "% of the time",
        "ε ≤ 1 per record at δ = 1e-05, for the worst of 4 parties",
    ):  # fmt: skip
        assert said in shown, said
    assert heart.stderr == ""


def test_the_models_score_stands_beside_those_without_privacy_with_the_data_they_stand_on(heart: Result) -> None:
    block = heart.stdout.split("accuracy on 254 published hold-out rows\n")[1].split("\n\n")[0]
    scores = {line.rsplit(maxsplit=1)[0].strip(): float(line.rsplit(maxsplit=1)[1]) for line in block.splitlines()}
    assert next(iter(scores)) == "this model"
    assert "all rows in one place, no privacy" in scores
    assert {f"{site} alone, no privacy" for site in ("cleveland", "hungarian", "switzerland", "va")} < set(scores)
    assert all(0 <= score <= 1 for score in scores.values())


def test_the_last_line_names_a_command_that_works_and_so_does_the_one_after_it(heart: Result) -> None:
    shown, verified = heart.chain[:2]  # type: ignore[attr-defined]
    assert next_command(heart) == ["show", "demo"]
    assert shown.exit_code == 0, shown.output
    assert next_command(shown)[:2] == ["ledger", "verify"]
    assert verified.exit_code == 0, verified.output


def test_the_command_after_verify_works_as_it_stands(heart: Result) -> None:
    # Without an anchor a cut tail would look the same, so the next command names one: it must be a file that is there.
    for result in heart.chain:  # type: ignore[attr-defined]
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("text", [TINY, PUBLIC, NONE, FAST], ids=["protected", "public", "none", "fast"])
def test_nothing_is_wider_than_80_columns(text: str, heart: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    # Also the line with the budget, which is longest where the noise carries its label. In a pipe tables may be wider.
    monkeypatch.setenv("COLUMNS", "80")
    for result in (heart, run(text), invoke("show"), invoke("runs")):
        assert max(map(len, result.stdout.splitlines())) <= 80, max(result.stdout.splitlines(), key=len)


def test_without_a_terminal_there_are_plain_lines_and_no_escape_codes() -> None:
    shown = run(TINY.replace("rounds = 3", "rounds = 40")).stdout
    assert "\x1b" not in shown and "\r" not in shown
    lines = [line for line in shown.splitlines() if line.startswith("round ")]
    assert lines[0].startswith("round  1/40 · 2 of 2 parties · distance ")
    assert lines[-1].startswith("round 40/40")
    assert 10 <= len(lines) <= 12  # not one for each of the forty


def test_a_round_line_says_whom_it_protects_and_how_many_were_lost() -> None:
    text = TINY.replace("rounds = 3", 'rounds = 3\nsimulate = { refusing = ["south"] }')
    lines = [line for line in run(text).stdout.splitlines() if line.startswith("round ")]
    assert all("1 of 2 parties, 1 dropped" in line and line.endswith("of 2 per record") for line in lines)


# ------------------------------------------------------------------------- a guarantee wears its unit

UNIT = re.compile(r"per (record|person|client)")


def without_unit(text: str) -> list[str]:
    """Sentences and table columns with an ε figure that do not say of what."""
    bare = text.replace("│", " ").replace("╭", " ").replace("╰", " ")
    found = []
    for sentence in re.split(r"\n\s*\n|(?<=[.;])\s|\n(?=round |  |budget|promise|whole|affordable)", bare):
        figure = re.search(r"ε\s*(≤|=|<)?\s*\d", sentence)
        if figure and not UNIT.search(words(sentence)):
            found.append(words(sentence))
    return found


@pytest.mark.parametrize("text", [TINY, PUBLIC, FAST, REFUSING], ids=["protected", "public", "fast", "refusing"])
def test_every_epsilon_that_is_printed_says_of_what(text: str) -> None:
    code = 6 if text == REFUSING else 0
    results = [run(text, "-v", code=code), invoke("plan", "run.toml"), invoke("show"), invoke("runs")]
    results += [invoke("ledger", "show"), invoke("ledger", "show", "--run", "run")]
    printed = [result.stdout + "\n\n" + result.stderr for result in results]
    assert any("ε" in one for one in printed)
    for one in printed:
        assert without_unit(one) == []


def test_the_control_an_epsilon_without_its_unit_is_found() -> None:
    assert without_unit("The model has ε ≤ 1.2 at δ = 1e-5.") == ["The model has ε ≤ 1.2 at δ = 1e-5."]
    assert without_unit("spent ε 0.70 of 1 per record\nround 2/3 · ε 0.9 of 1") == ["round 2/3 · ε 0.9 of 1"]


# ----------------------------------------------------------------------------------------------- programs


@pytest.mark.parametrize(("text", "code"), [(TINY, 0), (REFUSING, 6)], ids=["finished", "refused"])
def test_with_json_every_line_is_an_object_and_the_last_says_how_it_ended(text: str, code: int) -> None:
    result = run(text, "--json", code=code)
    lines = [json.loads(line) for line in result.stdout.splitlines()]  # JSON lines: one object a line, the last too
    assert [line["event"] for line in lines[:2]] == ["run-started", "round-started"]
    last = lines[-1]
    assert (last["event"], last["exit_code"], last["run"]) == ("result", code, "run")
    assert {(one["unit"], one["observer"]) for one in last["guarantees"]} == {
        ("record", "server"), ("record", "recipients"),
    }  # fmt: skip
    assert all(one["epsilon"] <= 2.0 for one in last["guarantees"])


def test_events_jsonl_holds_what_was_told(tmp_path: Path) -> None:
    run()
    lines = (tmp_path / "quietsum-workspace/runs/run/events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds == ["run-started", *(["round-started", "round-finished"] * 3), "run-finished"]


# ------------------------------------------------------------------------------------------ how it ends


def test_a_second_run_on_the_same_protected_data_ends_with_3_and_the_first_model_stays() -> None:
    run(name="first")
    model = Path("quietsum-workspace/runs/first/model.safetensors")
    before, report = model.read_bytes(), Path("quietsum-workspace/runs/first/report.json").read_bytes()
    result = run(name="second", code=3)
    told = words(result.stderr)
    assert "points-north" in told and "ε = 2 per record" in told
    assert model.read_bytes() == before
    assert Path("quietsum-workspace/runs/first/report.json").read_bytes() == report
    assert sorted(path.name for path in Path("quietsum-workspace/runs").iterdir()) == ["first"]


def test_the_command_that_a_refusal_names_lets_the_second_run_in() -> None:
    run(name="first")
    refusal = words(invoke("run", "run.toml", "--name", "second").stderr)
    command = shlex.split(refusal[refusal.index("quietsum ledger raise") :])[1:]
    assert invoke(*command).exit_code == 0
    run(name="second")


def test_on_public_data_one_may_run_again_and_again() -> None:
    for number in range(3):
        run(PUBLIC, name=f"run-{number}")


def test_a_budget_that_ends_in_the_middle_ends_with_3_and_the_model_is_kept() -> None:
    interrupted(after=2)
    newest = sorted(Path("quietsum-workspace/runs/run/checkpoints").iterdir())[-1]
    newest.unlink()  # round 2 must be made again, which the plan did not foresee
    result = invoke("run", "--resume", "run")
    assert result.exit_code == 3, result.output
    assert "stopped after round 2" in words(result.stderr)
    params, about = checkpoints.read_model(Path("quietsum-workspace/runs/run/model.safetensors"))
    assert len(params) == 2 and about["outcome"] == "budget"
    assert next_command(result) == ["ledger", "show"]
    assert invoke(*next_command(result)).exit_code == 0
    assert "stopped by its budget" in invoke("show").stdout


def test_a_damaged_ledger_ends_with_4_before_anybody_is_asked() -> None:
    interrupted()
    tamper(Workspace.at().ledger, "UPDATE entries SET body = replace(body, 'north', 'nörth') WHERE sequence = 4")
    checkpoint = sorted(Path("quietsum-workspace/runs/run/checkpoints").iterdir())
    for command in (("run", "--resume", "run"), ("run", "run.toml"), ("show", "run"), ("ledger", "verify")):
        Path("run.toml").write_text(TINY, encoding="utf-8")
        result = invoke(*command)
        assert result.exit_code == 4, (command, result.output)
        assert "error: the ledger's entry 4" in result.stderr
    assert sorted(Path("quietsum-workspace/runs/run/checkpoints").iterdir()) == checkpoint


def test_when_all_parties_refuse_it_ends_with_6_and_costs_nothing() -> None:
    result = run(REFUSING, code=6)
    assert "stopped after round 0" in words(result.stderr) and "0 of 2 parties" in words(result.stderr)
    assert spent() in ({}, {"north": 0.0, "south": 0.0})
    assert next_command(result)[:3] == ["run", "--resume", "run"]
    assert Path("quietsum-workspace/runs/run/model.safetensors").is_file()


def test_a_run_without_a_finished_round_promises_nothing_and_shows_no_score() -> None:
    told = words(run(REFUSING.replace('TinyTask"', 'TinyTask"\noptions = { public = "made up" }'), code=6).stdout)
    assert "No round was finished, so this run has no model" in told
    assert "From this run alone" not in told and "this model" not in told
    trained = words(run(PUBLIC, name="trained").stdout)
    assert "From this run alone" in trained and "this model" in trained, "the control"
    assert "No round was finished" not in trained


def test_what_a_refused_round_costs_is_told_truly() -> None:
    # All parties refused before they looked, so all charges went back: the text must not say that it was charged.
    assert "charged all the same" not in words(run(REFUSING, code=6).stderr)


# ---------------------------------------------------------------------------------------------- going on


def test_resume_latest_goes_on_after_an_interruption_and_spends_what_an_unbroken_run_spends(tmp_path: Path) -> None:
    interrupted()
    assert "not finished" in words(invoke("show", "latest").stdout)
    assert next_command(invoke("show", "latest")) == ["run", "--resume", "run"]
    result = invoke("run", "--resume", "latest")
    assert result.exit_code == 0, result.output
    assert "run run goes on" in result.stdout
    lines = [line.split(" · ")[0] for line in result.stdout.splitlines() if line.startswith("round ")]
    assert lines == ["round 2/3", "round 3/3"]
    after = spent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIETSUM_WORKSPACE", str(tmp_path / "unbroken"))
        run()
        assert spent() == after


def test_a_run_that_stopped_for_want_of_parties_goes_on_as_it_says() -> None:
    text = TINY.replace("rounds = 3", "rounds = 3\nspare_attempts = 2\nsimulate = { drop_outs = 1.0 }")
    result = run(text, code=6)
    again = invoke(*next_command(result))
    assert again.exit_code == 6, again.output  # its replies are lost again, and that was paid for again
    with Ledger.open(Workspace.at().ledger) as ledger:
        assert ledger.next_attempt("run", 1) == 3
        ledger.verify()


def test_resuming_a_finished_run_spends_nothing() -> None:
    run()
    before = spent()
    assert invoke("run", "--resume", "latest").exit_code == 0
    assert spent() == before


class Sites(Federation):
    """Sites elsewhere without a network: none comes until ``there``."""

    remote = True

    def __init__(self) -> None:
        task, plan = task_named("tiny:TinyTask"), load_plan(TINY)
        self.inner = LocalFederation.of(task, resolve(plan, task.parties(), task.dimension))
        self.there, self.asked, self.links = False, 0, list[dict[str, Any]]()

    @contextlib.contextmanager
    def flower(self, **how: Any) -> Iterator[Sites]:
        self.links.append(how)
        yield self

    def registered(self) -> Any:
        return self.inner.registered()

    def ask(self, request: Any, cohort: Any, fold: Any) -> Any:
        self.asked += 1
        return self.inner.ask(request, cohort, fold)

    def join(self, run: str, resolved: Any, ledger: Ledger) -> None:
        if not self.there:
            raise TooFewParties("0 of 2 sites have come")


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Sites:
    found = Sites()
    monkeypatch.setattr("quietsum.cli.train.flower.flower", found.flower)
    return found


@pytest.mark.parametrize(
    "how",
    [
        ("--keys", "keys", "--superlink", "a folder"),
        ("--keys", "keys", "--listen", "0.0.0.0:9092", "--wait", "7.5"),
        ("--keys", "keys", "--listen", "127.0.0.1:9092", "--insecure-loopback"),
    ],
)
def test_a_run_of_sites_goes_on_with_them_as_it_says(sites: Sites, how: tuple[str, ...]) -> None:
    stopped = run(TINY, "--on", "flower", *how, code=6)
    words = next_command(stopped)
    assert words == ["run", "--resume", "run", "--on", "flower", *how]
    assert max(map(len, stopped.stdout.splitlines())) <= 80
    sites.there = True
    assert invoke(*words).exit_code == 0 and sites.asked == 3
    first, second = sites.links
    assert first == second, "the SuperLink and the keys are the same"


def test_a_run_of_sites_is_not_finished_on_this_machine_by_a_command_that_forgets_them(sites: Sites) -> None:
    run(TINY, "--on", "flower", "--keys", "keys", "--superlink", "link", code=6)
    before = spent()
    for name in ("run", "latest"):
        refused = invoke("run", "--resume", name)
        assert refused.exit_code == 2, refused.output
        assert "quietsum run --resume run --on flower --keys DIR --superlink DIR" in words(refused.stderr)
    assert spent() == before and sites.asked == 0


def test_a_run_of_this_machine_starts_no_superlink(sites: Sites) -> None:
    interrupted()
    refused = invoke("run", "--resume", "run", "--on", "flower", "--keys", "keys", "--superlink", "link")
    assert refused.exit_code == 2 and "go on with: quietsum run --resume run" in words(refused.stderr)
    assert sites.links == []
    assert invoke("run", "--resume", "run").exit_code == 0, "the control: as it says"


def test_a_coordinator_says_by_which_name_sites_pin_it(sites: Sites) -> None:
    how = ("--on", "flower", "--keys", "keys", "--superlink", "link")
    told = run(TINY, *how, code=6).stdout
    with Ledger.open(Workspace.at().ledger, read_only=True) as ledger:
        line = f"this coordinator's ledger is {ledger.identity.ledger}; sites pin it as coordinator.ledger"
    assert line in words(told) and max(map(len, told.splitlines())) <= 80
    assert line in words(invoke("run", "--resume", "run", *how).stdout)
    for text in invoke("run", "--resume", "run", *how, "--json").stdout.splitlines():
        json.loads(text)


def test_the_control_a_run_of_one_machine_has_nobody_to_tell() -> None:
    assert "coordinator" not in run().stdout


@contextlib.contextmanager
def interrupting(number: signal.Signals, kind: str = "round-finished", round: int = 2) -> Iterator[None]:
    """This process sends itself a signal, once a run has come so far."""
    from quietsum.runs import progress

    def press(self: Any, event: Any) -> None:
        honest(self, event)
        if event.kind == kind and getattr(event, "round", round) == round:
            os.kill(os.getpid(), number)

    honest = progress.Progress.saw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.Progress, "saw", press)
        yield


@pytest.mark.usefixtures("_at_a_keyboard")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_says_what_is_kept_and_how_to_go_on(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with interrupting(number):
        result = run(TINY, "--workspace", "here", code=code)
    assert "Traceback" not in result.output and signal.getsignal(number) is before
    told = words(result.stderr)
    assert "run run is kept as its last finished round left it; what was charged stays charged" in told
    assert max(map(len, result.output.splitlines())) <= 80
    following = next_command(result)
    assert following == ["run", "--resume", "run", "--workspace", "here"]
    assert "interrupted" in invoke("runs", "--workspace", "here").stdout
    again = invoke(*following)
    assert again.exit_code == 0 and "round 3/3" in again.stdout, again.output


@pytest.mark.usefixtures("_at_a_keyboard")
def test_an_interrupted_run_of_sites_names_them_in_the_command_that_goes_on(sites: Sites) -> None:
    sites.there = True
    how = ("--on", "flower", "--keys", "keys", "--superlink", "link")
    with interrupting(signal.SIGINT):
        result = run(TINY, *how, code=130)
    assert next_command(result) == ["run", "--resume", "run", *how]


@pytest.mark.usefixtures("_at_a_keyboard")
def test_an_interruption_that_an_import_swallowed_counts_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quietsum import tasks

    honest = tasks.task_of

    def swallowing(*given: Any, **more: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return honest(*given, **more)

    monkeypatch.setattr(tasks, "task_of", swallowing)
    result = run(code=130)
    assert "round 1" not in result.stdout and spent() in ({}, {"north": 0.0, "south": 0.0})


@pytest.mark.usefixtures("_at_a_keyboard")
def test_before_there_is_a_run_an_interruption_has_nothing_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("quietsum.plan.load_plan", press)
    result = run(code=130)
    assert "nothing was charged" in result.stderr and "next:" not in result.stdout


@pytest.mark.usefixtures("_at_a_keyboard")
def test_in_the_background_of_a_script_a_run_does_not_hear_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupting(signal.SIGINT):
        assert "stopped" not in run().stderr


# ---------------------------------------------------------------------------------- style none, fast noise


def test_style_none_says_so_wherever_a_figure_would_stand() -> None:
    started = run(NONE, name="one")
    run(NONE, name="two")
    assert started.stdout.count(NO_GUARANTEE) == 5  # the introduction, three rounds, the sentence at the end
    for command in (("plan", "run.toml"), ("show", "one"), ("runs",), ("compare", "one", "two")):
        result = invoke(*command)
        assert result.exit_code == 0, result.output
        assert NO_GUARANTEE in words(result.stdout), command
        assert not re.search(r"ε\s*(≤|=|<)?\s*\d", result.stdout), command
    for result in (started, invoke("runs")):
        assert not re.search(r"ε\s*(≤|=|<)?\s*[\d∞]", result.stdout)
    html = Path("quietsum-workspace/runs/one/report.html").read_text()
    assert NO_GUARANTEE in html and "ε at most" not in html
    values = json.loads(Path("quietsum-workspace/runs/one/report.json").read_text())
    assert values["guarantees"] == [] and values["sentences"][0].startswith(NO_GUARANTEE)


def test_the_control_a_protected_run_never_says_so() -> None:
    run()
    for command in (("show",), ("runs",), ("plan", "run.toml")):
        assert NO_GUARANTEE not in invoke(*command).stdout
    assert NO_GUARANTEE not in Path("quietsum-workspace/runs/run/report.html").read_text()


LABEL = "not floating-point safe"


def test_fast_noise_is_labelled_in_every_text_about_the_run() -> None:
    result = run(FAST)
    assert words(result.stdout).count(LABEL) >= 2
    for command in (("plan", "run.toml"), ("show",)):
        assert LABEL in words(invoke(*command).stdout), command
    assert LABEL in Path("quietsum-workspace/runs/run/report.html").read_text()


def test_fast_noise_is_labelled_in_the_guarantee_itself() -> None:
    # The label belongs to the guarantee: wherever the guarantee goes without the report, it must go along.
    run(FAST)
    values = json.loads(Path("quietsum-workspace/runs/run/report.json").read_text())
    _, about = checkpoints.read_model(Path("quietsum-workspace/runs/run/model.safetensors"))
    for guarantees in (values["guarantees"], about["guarantees"]):
        assert all(any(LABEL in text for text in one["warnings"]) for one in guarantees)


def test_the_control_secure_noise_is_not_labelled() -> None:
    assert LABEL not in words(run().stdout)
    assert LABEL not in words(invoke("show").stdout)
