"""``quietsum new`` writes a commented run.toml that loads and resolves, and never takes a file's place unasked."""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import Result

from quietsum.cli.train.new import PresetName
from quietsum.errors import InvalidParameter
from quietsum.plan import PRESETS, PartyFacts, load_plan, resolve
from quietsum.plan.text.template import CLIENTS, DEFAULTS, HEART_DEFAULTS, OTHER_DEFAULTS, template
from quietsum.tasks import TASKS, task_named
from quietsum.tasks.registry import TRAINABLE
from scenes import invoke

VARIANTS = [(task, preset) for task in sorted(TASKS) for preset in (None, *PRESETS)]
EVERY_TASK = sorted((*TASKS, *TRAINABLE))
STYLES = ("sample", "user", "hybrid")


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize(("task", "preset"), VARIANTS)
def test_every_variant_loads_resolves_and_can_be_planned(task: str, preset: str | None) -> None:
    options = [] if preset is None else ["--preset", preset]
    result = invoke("new", "run.toml", "--task", task, *options)
    assert result.exit_code == 0, result.output
    plan = load_plan(Path("run.toml"))
    known = task_named(task, {})
    resolved = resolve(plan, known.parties(), known.dimension)
    assert resolved.limit is not None and not resolved.warnings
    assert plan.privacy.preset == preset
    assert resolved.limit.epsilon == (PRESETS[preset].epsilon if preset else HEART_DEFAULTS.epsilon)
    assert invoke("plan", "run.toml").exit_code == 0


def test_the_lines_about_a_robust_rule_make_a_plan_that_stands_where_they_are_uncommented() -> None:
    text = template(task="heart")
    for before, after in (('rule = "mean" ', "# "), ('# rule = "median"', 'rule = "median"'),
                          ("# attackers = 1", "attackers = 1"), ('weights = "size"', 'weights = "equal"')):  # fmt: skip
        assert text.count(before) == 1
        text = text.replace(before, after)
    known = task_named("heart", {})
    resolved = resolve(load_plan(text), known.parties(), known.dimension)
    assert resolved.robust is not None and resolved.attackers == 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("secure", [False, True])
def test_every_template_says_where_to_read_about_rules(style: str, secure: bool) -> None:
    text = template(task="digits", style=style, secure=secure)
    assert "# Against bad updates" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 80


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_template_for_your_own_task_resolves_for_sites_of_all_sizes(preset: str | None) -> None:
    plan = load_plan(template(task="my_module:MyTask", preset=preset))
    assert plan.task.name == "my_module:MyTask"
    for size in (1, 10, 1000):
        assert resolve(plan, [PartyFacts(name="a", dataset="d", size=size)], 10).limit is not None
    assert plan.training.sample_rate == OTHER_DEFAULTS.sample_rate


def test_the_heart_defaults_stand_in_the_file() -> None:
    invoke("new")
    plan = load_plan(Path("run.toml"))
    assert plan.federation.rounds == HEART_DEFAULTS.rounds
    assert plan.training.sample_rate == HEART_DEFAULTS.sample_rate
    assert plan.training.local_steps == HEART_DEFAULTS.local_steps
    assert plan.training.local_epochs == HEART_DEFAULTS.local_epochs
    assert plan.training.optimizer.learning_rate == HEART_DEFAULTS.learning_rate
    assert plan.privacy.record is not None
    assert plan.privacy.record.max_grad_norm == HEART_DEFAULTS.max_grad_norm
    assert (plan.privacy.record.epsilon, plan.privacy.record.delta) == (HEART_DEFAULTS.epsilon, HEART_DEFAULTS.delta)


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_file_is_commented_and_fits_80_columns(preset: str | None) -> None:
    lines = template(preset=preset).splitlines()
    assert sum("#" in line for line in lines) >= 12
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_alternatives_in_the_comments_are_valid_too(preset: str | None) -> None:
    """What a comment offers instead may be uncommented: the other promise, and its own line removed."""
    lines = template(preset=preset).splitlines()
    own = "preset =" if preset else "record ="
    other = "# record =" if preset else "# preset ="
    swapped = [line for line in lines if not line.startswith((own, "record ="))]
    swapped = [line.removeprefix("# ") if line.startswith(other) else line for line in swapped]
    plan = load_plan("\n".join(swapped) + "\n")
    known = task_named("heart", {})
    assert resolve(plan, known.parties(), known.dimension).limit is not None
    assert (plan.privacy.preset is None) == (preset is not None)


def test_the_command_offers_exactly_the_presets_there_are() -> None:
    assert [name.value for name in PresetName] == list(PRESETS)
    with pytest.raises(InvalidParameter, match="privacy_high, privacy_medium, performance"):
        template(preset="privacy_low")
    assert invoke("new", "--preset", "privacy_low").exit_code == 2


def test_it_names_the_next_command() -> None:
    result = invoke("new", "my run.toml")
    assert result.stdout.splitlines()[-1] == "next: quietsum plan 'my run.toml'"
    assert "ε 1 per record" in result.stdout


def test_an_existing_file_stays_unless_forced() -> None:
    Path("run.toml").write_text("mine")
    refused = invoke("new")
    assert refused.exit_code == 2 and "--force" in refused.stderr
    assert Path("run.toml").read_text() == "mine"
    assert invoke("new", "--force").exit_code == 0
    assert load_plan(Path("run.toml")).task.name == "heart"


def test_a_link_that_leads_nowhere_is_a_file_too() -> None:
    os.symlink("elsewhere.toml", "run.toml")
    assert invoke("new").exit_code == 2
    assert not Path("elsewhere.toml").exists()


def test_a_file_that_appears_meanwhile_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(source: str, target: Path) -> None:
        Path(target).write_text("somebody else's")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert invoke("new").exit_code == 2
    assert Path("run.toml").read_text() == "somebody else's"
    assert os.listdir() == ["run.toml"]


def test_a_file_system_without_links_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(source: str, target: Path) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", none)
    assert invoke("new").exit_code == 0
    assert os.listdir() == ["run.toml"]
    assert invoke("new").exit_code == 2


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_full_disk_leaves_nothing_half_written(monkeypatch: pytest.MonkeyPatch, force: list[str]) -> None:
    if force:
        Path("run.toml").write_text("mine")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = invoke("new", *force)
    assert result.exit_code == 1 and "No space left" in result.stderr
    assert os.listdir() == (["run.toml"] if force else [])
    assert not force or Path("run.toml").read_text() == "mine"


def test_places_that_cannot_be_written_are_named() -> None:
    Path("folder").mkdir()
    for place, told in (("folder", "is a directory"), ("none/run.toml", "cannot be written")):
        result = invoke("new", place)
        assert result.exit_code == 2 and told in result.stderr, result.output
        assert "Traceback" not in result.output


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_the_file_gets_ordinary_permissions() -> None:
    mask = os.umask(0o022)
    try:
        invoke("new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(Path("run.toml").stat().st_mode) == 0o644


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    result = invoke("new", "--task", "hart")
    assert result.exit_code == 2 and 'did you mean "heart"?' in result.stderr
    assert not os.listdir()


def test_odd_task_names_are_quoted() -> None:
    for name in ('m:"Q"', "m:\\n", "m:ä#"):
        assert tomllib.loads(template(task=name))["task"]["name"] == name


def test_programs_are_told_what_was_written() -> None:
    values = json.loads(invoke("new", "--json", "--preset", "performance").stdout)
    plan = load_plan(Path("run.toml"))
    assert values == {
        "file": "run.toml", "task": "heart", "style": "sample", "preset": "performance", "digest": plan.digest,
    }  # fmt: skip


# ------------------------------------------------------------------------------------- every task, every style


def planned(task: str) -> Result:
    """``quietsum plan`` of the file that was written; a task without its data is skipped, and says which."""
    result = invoke("plan", "run.toml", "--json")
    if result.exit_code and "QUIETSUM_DATA" in result.output:
        pytest.skip(f"{task} needs its files: set QUIETSUM_DATA")
    return result


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("task", EVERY_TASK)
def test_a_first_plan_of_every_task_and_style_is_accepted_by_quietsum_plan(task: str, style: str) -> None:
    assert invoke("new", "--task", task, "--style", style).exit_code == 0
    result = planned(task)
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    units = {"sample": ["record"], "user": ["client"], "hybrid": ["record", "client"]}[style]
    assert [limit["unit"] for limit in values["limits"]] == units
    assert values["plan"]["task"]["name"] == task and values["plan"]["privacy"]["style"] == style


def test_a_plan_that_is_refused_would_be_noticed() -> None:
    Path("run.toml").write_text(template(task="digits", style="user").replace("delta = 0.0001", "delta = 0.1"))
    result = planned("digits")
    assert result.exit_code == 2 and "is not below 1/N for N = 600 clients" in result.output


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("task", EVERY_TASK)
def test_a_plan_needs_neither_data_nor_torch_to_be_written(
    task: str, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIETSUM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    with pytest.raises(ImportError):
        import torch  # noqa: F401  # the control
    result = invoke("new", "--task", task, "--style", style)
    assert result.exit_code == 0, result.output
    plan = load_plan(Path("run.toml"))
    assert plan.privacy.style == style


def test_every_task_has_settings_of_its_own() -> None:
    assert sorted(DEFAULTS) == sorted(CLIENTS) == EVERY_TASK


def test_clients_are_made_where_a_task_has_no_sites_and_only_there() -> None:
    splits = {task: load_plan(template(task=task)).federation for task in EVERY_TASK}
    natural = {task for task, federation in splits.items() if federation.split == "natural"}
    assert natural == {"heart", "pose", "nuclei", "cards", "text"}
    assert splits["cards"].parties == 500
    assert all(isinstance(splits[task].parties, int) for task in set(EVERY_TASK) - natural)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("task", [*EVERY_TASK, "my_module:MyTask"])
def test_every_file_is_commented_and_fits_80_columns(task: str, style: str) -> None:
    lines = template(task=task, style=style).splitlines()
    assert sum("#" in line for line in lines) >= 12
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("style", ["user", "hybrid"])
@pytest.mark.parametrize("key", ['noise_at = "party"', "adaptive = {}"])
def test_the_other_ways_to_protect_clients_in_the_comments_are_valid(style: str, key: str) -> None:
    lines = template(task="my_module:MyTask", style=style).splitlines()
    kept = [line for line in lines if not line.startswith("client =")]
    swapped = [line.removeprefix("# ") if line.startswith("# client") and key in line else line for line in kept]
    assert len(swapped) == len(lines) - 1 and swapped != kept
    text = "\n".join(swapped) + "\n"
    if "party" in key:  # the comment beside it says so
        assert any("who sends is seen" in line and "zero-out" in line for line in lines)
        text = text.replace('neighbours = "add-or-remove-one"', 'neighbours = "zero-out"')
    plan = load_plan(text)
    parties = [PartyFacts(name=f"p{number}", dataset=f"d{number}", size=50) for number in range(500)]
    resolved = resolve(plan, parties, 10)
    assert resolved.noise_at_party == (key == 'noise_at = "party"')
    assert (resolved.adaptive is not None) == (key == "adaptive = {}")


@pytest.mark.parametrize("task", ["pose", "cards"])
def test_the_promise_to_whole_people_in_the_comments_is_valid(task: str) -> None:
    lines = template(task=task).splitlines()
    text = "\n".join(line.removeprefix("# ") if line.startswith("# person") else line for line in lines)
    Path("run.toml").write_text(text, encoding="utf-8")
    result = planned(task)
    assert result.exit_code == 0, result.output
    assert [limit["unit"] for limit in json.loads(result.stdout)["limits"]] == ["record", "person"]


def test_a_preset_promises_records_something_that_style_user_does_not() -> None:
    result = invoke("new", "--style", "user", "--preset", "performance")
    assert result.exit_code == 2 and "style = hybrid" in " ".join(result.stderr.split())
    assert not os.listdir()
    assert invoke("new", "--style", "hybrid", "--preset", "performance").exit_code == 0
    plan = load_plan(Path("run.toml"))
    assert plan.privacy.preset == "performance" and plan.privacy.client is not None


def test_unknown_styles_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="choose sample, user or hybrid"):
        template(style="none")
    assert invoke("new", "--style", "person").exit_code == 2


def test_every_unit_is_named_and_nothing_is_added() -> None:
    result = invoke("new", "--task", "digits", "--style", "hybrid")
    assert "ε 8 per record and ε 8 per client" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


# ---------------------------------------------------------------------------------------------- masked sums


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
@pytest.mark.parametrize("task", ["heart", "digits", "fraud", "my_module:MyTask"])
def test_a_secure_plan_of_every_style_is_refused_by_no_row_and_has_its_noise_in_shares(task: str, style: str) -> None:
    from quietsum.plan import PartyFacts, load_plan
    from quietsum.plan.refusals import find_refusals
    from quietsum.plan.text.template import template

    text = template(task=task, style=style, secure=True)
    plan = load_plan(text)
    count = plan.federation.parties if isinstance(plan.federation.parties, int) else 6
    sites = [
        PartyFacts(name=f"site-{at}", dataset="d", size=90_000, public="made up", holder="lab") for at in range(count)
    ]
    ours = [one for one in find_refusals(plan, sites) if one.name not in ("delta-too-large", "client-delta-too-large")]
    assert ours == [] and plan.aggregation.secure and plan.aggregation.drop_outs is not None
    promise = plan.privacy.record if style == "sample" else plan.privacy.client
    assert promise is not None and promise.noise_at == "distributed"
    assert max(map(len, text.splitlines())) <= 88


def test_a_secure_plan_is_written_and_resolves_for_the_task_that_travels_along() -> None:
    result = invoke("new", "masked.toml", "--secure")
    assert result.exit_code == 0, result.output
    planned = invoke("plan", "masked.toml")
    assert planned.exit_code == 0 and "to unmask one update" in planned.stdout
