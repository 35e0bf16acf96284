"""``quietsum plan`` says what a run would cost, whom it would ask and what refuses it; it spends and writes nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from quietsum.ledger import Ledger
from quietsum.plan import load_plan, resolve
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.tasks import task_named
from scenes import invoke

HEART = """
[federation]
rounds = {rounds}
[training]
sample_rate = 0.5
local_steps = 1
[privacy]
record = {{ epsilon = 1.0, delta = 1e-5 }}
"""

WARDS = '''
import numpy as np
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows


class Wards:
    """Two sites with data that nobody declared public."""

    name, title, dimension = "wards", "two wards", 4

    def __init__(self, public=""):
        self.public = public

    def parties(self):
        sizes = {"north": 400, "south": 90}
        return tuple(
            PartyFacts(name=name, dataset="visits", size=size, public=self.public) for name, size in sizes.items()
        )

    def initial(self):
        return np.zeros(4)

    def rows(self, party):
        raise AssertionError("a plan looks at no data")

    gradients = evaluate = rows
'''

PROTECTED = """
[task]
name = "wards:Wards"
[federation]
rounds = 5
[training]
batch_size = 30
local_steps = 2
[privacy]
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wards.py").write_text(WARDS, encoding="utf-8")


def written(text: str) -> Path:
    Path("run.toml").write_text(text, encoding="utf-8")
    return Path("run.toml")


def values_of(text: str, *more: object, code: int = 0) -> dict[str, Any]:
    result = invoke("plan", written(text), "--json", *more)
    assert result.exit_code == code, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def spend(text: str, rounds: int, workspace: str = "quietsum-workspace") -> None:
    """Do to the ledger what a run would do."""
    plan = load_plan(text)
    task = task_named(plan.task.name, plan.task.options)
    resolved = resolve(plan, task.parties(), task.dimension)
    Path(workspace).mkdir(exist_ok=True)
    with Ledger.open(Path(workspace) / "ledger.db", create=True) as ledger:
        ledger.open_run(
            "earlier", plan=plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
            datasets=resolved.datasets(), lifetimes=resolved.lifetimes(),
        )  # fmt: skip
        for number in range(1, rounds + 1):
            ledger.commit(ledger.reserve("earlier", number, 1, resolved.charges()))


# ------------------------------------------------------------------------------------------------- people


@pytest.mark.parametrize("rounds", [1, 3, 20, 500])
def test_everything_needed_to_decide_stands_within_80_columns(rounds: int) -> None:
    result = invoke("plan", written(HEART.format(rounds=rounds)))
    assert result.exit_code == 0, result.output
    for said in (
        "cleveland", "uci-heart-va", "199", "noise_multiplier", "clip 1", "ε per record, server",
        "ε per record, recipients", "affordable", "Noise against signal", "Nothing was spent.",
        "next: quietsum run run.toml",
    ):  # fmt: skip
        assert said in result.stdout, said
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("rounds", [1, 2, 9, 10, 11, 20, 500])
def test_people_see_at_most_ten_rounds_the_first_and_the_last_among_them(rounds: int) -> None:
    lines = invoke("plan", written(HEART.format(rounds=rounds))).stdout.splitlines()
    start = next(index for index, line in enumerate(lines) if line.strip().startswith("after round"))
    shown = [line.split() for line in lines[start + 1 : lines.index("", start)]]
    numbers = [int(words[0]) for words in shown]
    assert numbers[0] == 1 and numbers[-1] == rounds and len(numbers) == min(rounds, len(numbers)) <= 10
    assert numbers == sorted(set(numbers))


def test_long_names_do_not_break_the_page() -> None:
    module = Path("wards.py").read_text(encoding="utf-8")
    Path("longwards.py").write_text(module.replace('"north"', '"n" * 70').replace('"visits"', '"v" * 90'))
    text = PROTECTED.replace("wards:", "longwards:") + "record = { epsilon = 1.0, delta = 1e-4 }\n"
    result = invoke("plan", written(text))
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_style_none_says_so_where_a_figure_would_stand() -> None:
    text = '[training]\nsample_rate = 0.5\n[privacy]\nstyle = "none"\n'
    result = invoke("plan", written(text))
    assert result.exit_code == 0, result.output
    assert "NO PRIVACY GUARANTEE" in result.stdout
    assert "ε" not in result.stdout and "δ" not in result.stdout
    values = values_of(text)
    assert values["privacy"] == "NO PRIVACY GUARANTEE"
    assert (values["noise_multiplier"], values["limit"], values["rounds"], values["whole_plan"]) == (None, None, [], [])


def test_every_epsilon_says_its_unit() -> None:
    text = HEART.format(rounds=20).replace("1e-5 }", "1e-5, lifetime = { epsilon = 3.0, delta = 1e-5 } }")
    result = invoke("plan", written(text))
    pieces = " ".join(result.stdout.replace("│", " ").split())
    assert "rounds at this noise, within the lifetime's ε = 3 per record" in pieces
    assert "≤ 1.0000 per record" in pieces


def test_spare_attempts_have_a_row_of_their_own() -> None:
    text = HEART.format(rounds=20).replace("[training]", "spare_attempts = 5\n[training]")
    assert "with spares" in invoke("plan", written(text)).stdout


def test_a_terminal_gets_a_chart_of_at_most_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quietsum.cli.train.plan import _chart

    task = task_named("heart", {})
    resolved = resolve(load_plan(HEART.format(rounds=200)), task.parties(), task.dimension)
    _chart(resolved)
    assert not capsys.readouterr().out  # no terminal, no chart
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    _chart(resolved)
    shown = capsys.readouterr().out
    assert "ε per record" in shown and "limit 1" in shown
    assert max(map(len, shown.splitlines())) <= 80


# ----------------------------------------------------------------------------------------------- programs


def test_programs_get_every_round_and_each_is_what_the_accountant_says() -> None:
    values = values_of(HEART.format(rounds=20))
    assert [row["round"] for row in values["rounds"]] == list(range(1, 21))
    from quietsum.privacy.events import Gaussian, PoissonSampled

    step = PoissonSampled(rate=0.5, event=Gaussian(noise_multiplier=values["noise_multiplier"]))
    accountant = ExactAccountant()
    for row in values["rounds"]:
        accountant.compose(step)
        expected = accountant.epsilon(delta=1e-5).epsilon
        assert {one["observer"] for one in row["guarantees"]} == {"server", "recipients"}
        for one in row["guarantees"]:
            assert one["unit"] == "record" and one["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert values["whole_plan"][0]["epsilon"] <= values["limit"]["epsilon"] == 1.0
    assert values["affordable_rounds"] == 20 and values["refusals"] == []


def test_the_json_names_plan_parties_and_signal() -> None:
    values = values_of(HEART.format(rounds=20))
    assert values["digest"] == load_plan(HEART.format(rounds=20)).digest
    assert [(one["name"], one["size"], one["sample_rate"], one["steps_per_round"]) for one in values["parties"]] == [
        ("cleveland", 199, 0.5, 1), ("hungarian", 172, 0.5, 1), ("switzerland", 30, 0.5, 1), ("va", 85, 0.5, 1),
    ]  # fmt: skip
    swiss = values["parties"][2]["noise_against_signal"]
    assert swiss["coordinate"] == pytest.approx(values["noise_multiplier"] / 15)
    assert swiss["length"] == pytest.approx(swiss["coordinate"] * 15**0.5)
    assert values["noise_against_signal"]["length"] < swiss["length"]


# ----------------------------------------------------------------------------------------------- refusals


def test_a_refused_plan_ends_with_2_and_all_reasons() -> None:
    text = HEART.format(rounds=20).replace("epsilon = 1.0", "epsilon = 1.0, noise_multiplier = 1.0")
    text += '[aggregation]\nrule = "best"\n'
    result = invoke("plan", written(text))
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.count("error:") == 2
    assert max(map(len, result.stderr.splitlines())) <= 80
    values = values_of(text, code=2)
    assert len(values["refusals"]) == 2 and "best" in values["refusals"][1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[privacy]\nrecord = { epsilonn = 1.0 }\n", "did you mean privacy.record.epsilon?"),
        ("[federation]\nrounds = = 1\n", "line 2"),
        ("", "is empty"),
        ('[task]\nname = "hart"\n', 'did you mean "heart"?'),
        ('[task]\nname = "nowhere:Task"\n', "cannot be imported"),
        ("[training]\nbatch_size = 32\n[privacy]\npreset = 'performance'\n", "'switzerland' (30)"),
    ],
)
def test_mistakes_end_with_2_and_a_lesson(text: str, told: str) -> None:
    result = invoke("plan", written(text))
    assert result.exit_code == 2 and not result.stdout
    assert told in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_missing_file_leads_to_quietsum_new() -> None:
    result = invoke("plan", "none.toml")
    assert result.exit_code == 2 and "quietsum new run.toml" in " ".join(result.stderr.split())


# ------------------------------------------------------------------------------------------------ budgets


def test_a_missing_ledger_is_fine_and_none_is_made() -> None:
    text = PROTECTED + "record = { epsilon = 1.0, delta = 1e-4 }\n"
    values = values_of(text)
    assert values["books"] == [] and values["budget_exhausted"] is None
    assert sorted(path.name for path in Path().iterdir() if path.name != "__pycache__") == ["run.toml", "wards.py"]
    assert "untouched" in invoke("plan", written(text)).stdout


def test_what_an_earlier_run_spent_is_shown_and_nothing_is_written() -> None:
    lifetime = "lifetime = { epsilon = 4.0, delta = 1e-4 }"
    text = PROTECTED + f"record = {{ epsilon = 1.0, delta = 1e-4, {lifetime} }}\n"
    spend(text, rounds=5)
    ledger = Path("quietsum-workspace") / "ledger.db"
    with Ledger.open(ledger) as opened:
        head = opened.head
    before = hashlib.sha256(ledger.read_bytes()).digest()
    values = values_of(text.replace("rounds = 5", "rounds = 4"))
    assert [(book["party"], book["budget"]["epsilon"], book["plans"]) for book in values["books"]] == [
        ("north", 4.0, 1), ("south", 4.0, 1),
    ]  # fmt: skip
    assert 0 < values["books"][1]["spent_fraction"] <= 0.25
    assert "% of ε 4 per record" in " ".join(invoke("plan", written(text)).stdout.split())
    assert hashlib.sha256(ledger.read_bytes()).digest() == before
    with Ledger.open(ledger) as opened:
        assert opened.head == head and [run.run for run in opened.runs()] == ["earlier"]
        opened.raise_budget(party="north", dataset="visits", epsilon=5.0, reason="the negative control")
    assert hashlib.sha256(ledger.read_bytes()).digest() != before


def test_a_lifetime_budget_that_is_too_small_ends_with_3_and_the_way_to_raise_it() -> None:
    text = PROTECTED + "record = { epsilon = 1.0, delta = 1e-4 }\n"
    spend(text, rounds=5)
    result = invoke("plan", written(text))
    assert result.exit_code == 3
    assert "quietsum ledger raise" in result.stderr and "next: quietsum run" not in result.stdout
    assert "noise_multiplier" in result.stdout  # the plan itself is still told
    values = values_of(text, code=3)
    assert "lifetime" in values["budget_exhausted"]


def test_a_stated_noise_beyond_the_stated_lifetime_ends_with_3() -> None:
    promise = "record = { noise_multiplier = 0.8, delta = 1e-4, lifetime = { epsilon = 0.5, delta = 1e-4 } }\n"
    assert invoke("plan", written(PROTECTED + promise)).exit_code == 3
    enough = promise.replace("epsilon = 0.5", "epsilon = 50.0")
    assert invoke("plan", written(PROTECTED + enough)).exit_code == 0


def test_another_workspace_has_other_books() -> None:
    text = PROTECTED + "record = { epsilon = 1.0, delta = 1e-4 }\n"
    spend(text, rounds=5, workspace="elsewhere")
    assert invoke("plan", written(text), "--workspace", "elsewhere").exit_code == 3
    result = invoke("plan", written(text), "--workspace", "fresh")
    assert result.exit_code == 0 and result.stdout.endswith("--workspace fresh\n")


def test_style_none_on_protected_data_is_refused_and_on_public_data_it_is_not() -> None:
    assert invoke("plan", written(PROTECTED + 'style = "none"\n')).exit_code == 2
    public = PROTECTED.replace('Wards"', 'Wards"\noptions = { public = "a demo" }') + 'style = "none"\n'
    assert invoke("plan", written(public)).exit_code == 0


def test_a_plan_looks_at_no_data() -> None:
    """The task's rows() raises when it is called."""
    text = PROTECTED + "record = { epsilon = 1.0, delta = 1e-4 }\n"
    assert invoke("plan", written(text)).exit_code == 0


# ----------------------------------------------------------------------------------- the guarantee card


def test_the_card_is_printed_instead_and_says_what_is_missing() -> None:
    from quietsum.plan.resolution.card import card

    task = task_named("heart", {})
    wanted = card(resolve(load_plan(HEART.format(rounds=20)), task.parties(), task.dimension))
    path = written(HEART.format(rounds=20))
    result = invoke("plan", path, "--card")
    assert result.exit_code == 0 and wanted.to_text() in result.stdout
    assert "NOT PROVIDED: The server sees one sum a round" in result.stdout
    assert json.loads(invoke("plan", path, "--card", "--json").stdout) == wanted.to_dict()


# ---------------------------------------------------------------------------------------- masked sums

MASKED = HEART.format(rounds=20) + "[aggregation]\nsecure = true\n"
SHARED = MASKED.replace("1e-5 }", '1e-5, noise_at = "distributed" }') + "drop_outs = 0.0\n"


def words_of(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_a_plan_with_masked_sums_says_who_must_collude_what_it_survives_and_what_it_costs() -> None:
    result = invoke("plan", written(SHARED))
    assert result.exit_code == 0, result.output
    told = words_of(result.stdout)
    for said in (
        "3 of 4, beside the server, to unmask one update",
        "at most 1 of 4 collude, so a sum holds 3 honest or more",
        "no drop-out in a round; below 4 the parties unmask nothing; say drop_outs = 0.25 to survive one",
        "10 messages,",
        "of one core, each round",
        "≤ 1.0000 per record, the worst party's, against the server",
        "≤ 1.0000 per record, the worst party's, against recipients",
        "skellam shares that make it from 3 parties on",
        "Noise alone",
        "Homomorphic encryption",
        "one bad site can shift the sum",
    ):
        assert said in told, said
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_plan_without_masks_says_nothing_of_them() -> None:
    told = words_of(invoke("plan", written(HEART.format(rounds=20))).stdout)
    for word in ("collude", "masked", "Homomorphic", "a party pays"):
        assert word not in told
    assert values_of(HEART.format(rounds=20))["secure"] is None


def test_masks_alone_change_no_price() -> None:
    bare, masked = values_of(HEART.format(rounds=20)), values_of(MASKED)
    assert bare["whole_plan"] == masked["whole_plan"] and bare["noise_multiplier"] == masked["noise_multiplier"]
    assert masked["secure"]["threshold"] == 3 and masked["secure"]["floor"] == 3 and masked["secure"]["honest"] == 2
    assert masked["secure"]["noise_in_shares"] is None


def test_programs_get_the_cost_of_a_round_as_the_protocol_states_it() -> None:
    from quietsum.secagg.cost import REFERENCE, estimate
    from quietsum.secagg.parameters import choose_parameters

    found = values_of(SHARED)["secure"]
    names = [facts.name for facts in task_named("heart", {}).parties()]
    wanted = estimate(
        choose_parameters(4, corrupt=1, drop_outs=0.0, adversary="curious"),
        dimension=15,
        machine=REFERENCE,
        name_bytes=-(-sum(map(len, names)) // len(names)),
    )
    for key in ("messages", "sent", "received"):
        assert found["party_cost"][key] == getattr(wanted.party, key)
        assert found["server_cost"][key] == getattr(wanted.server, key)
    assert found["party_cost"]["seconds"] > 0 and found["noise_in_shares"] == "record"


def test_noise_in_shares_needs_less_than_noise_at_each_party_by_nearly_the_root_of_the_honest() -> None:
    """√3 = 1.73, less what the grid and the distance from a Gaussian cost."""
    shared = values_of(SHARED)["noise_against_signal"]["length"]
    apart = values_of(HEART.format(rounds=20))["noise_against_signal"]["length"]
    assert 1.7 < apart / shared < 1.74


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("secure_agg_enabled = true", "did you mean aggregation.secure?"),
        ('secure = true\nrule = "krum"', "this rule has no single updates to judge"),
        ("secure = true\ncolluders = 2", "fewer than three honest parties"),
    ],
)
def test_what_masked_sums_cannot_do_ends_with_2_and_a_lesson(more: str, told: str) -> None:
    result = invoke("plan", written(f"{HEART.format(rounds=20)}[aggregation]\n{more}\n"))
    assert result.exit_code == 2 and told in words_of(result.stderr)


def test_a_refused_plan_names_the_nearest_possible_one_in_words_and_in_values() -> None:
    bad = written(f'{HEART.format(rounds=20)}[aggregation]\nrule = "median"\nattackers = 2\n')
    result = invoke("plan", bad)
    assert result.exit_code == 2 and "nearest possible plan: aggregation.attackers = 1" in words_of(result.stderr)
    values = json.loads(invoke("plan", bad, "--json").stdout)
    assert {"aggregation.attackers": 1} in values["nearest"]
    assert len(values["refusals"]) == 1 and "nearest" not in values["refusals"][0]
    assert invoke("plan", written(f'{HEART.format(rounds=20)}[aggregation]\nrule = "median"\n')).exit_code == 0


def test_a_plan_lists_five_layers_of_defence_with_the_key_of_each_that_is_off() -> None:
    plain, judged = HEART.format(rounds=3), HEART.format(rounds=3) + '[aggregation]\nrule = "median"\n'
    shown = words_of(invoke("plan", written(plain)).stdout)
    assert "off server defence: a mean believes every update" in shown and "Setting: aggregation.rule" in shown
    states = {layer["name"]: layer["state"] for layer in values_of(judged)["layers"]}
    assert states == {"input validation": "off", "local privacy": "on", "secure communication": "off",
                      "server defence": "on", "monitoring": "on"}  # fmt: skip


def test_a_plan_tells_programs_and_people_what_its_rule_is_made_for_and_what_noise_hides_from_it() -> None:
    judged = HEART.format(rounds=20) + '[aggregation]\nrule = "median"\nattackers = 1\n'
    robust = values_of(judged)["robust"]
    assert (robust["rule"], robust["attackers"], robust["least"]) == ("median", 1, 3)
    assert robust["noise"]["faint"] and robust["noise"]["party"] == "switzerland"
    assert values_of(HEART.format(rounds=20))["robust"] is None
    shown = words_of(invoke("plan", written(judged)).stdout)
    assert "coordinate median, for 1 that may be anything, from 3 updates on" in shown
    assert "warning: noise hides signs, directions and distances from aggregation.rule = 'median'" in shown


def test_a_plan_says_how_much_its_rule_remembers_of_single_parties() -> None:
    keeps, keeps_not = (
        HEART.format(rounds=3) + f'[aggregation]\nrule = "{rule}"\n' for rule in ("foolsgold", "median")
    )
    size = 8 * 4 * values_of(keeps)["task"]["dimension"]
    assert values_of(keeps)["robust"]["bytes_of_parties"] == size
    assert values_of(keeps_not)["robust"]["bytes_of_parties"] == 0
    shown = words_of(invoke("plan", written(keeps)).stdout)
    assert f"it remembers {size} bytes of single parties, in a file beside each checkpoint for the operator" in shown
    assert "it remembers" not in words_of(invoke("plan", written(keeps_not)).stdout)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "an update that is too long is left out; each site has its own limit, "),
        ("[aggregation]\nsecure = true\ndrop_outs = 0.0\n", "none is left out for its length; one bad site can shift"),
    ],
)  # fmt: skip
def test_what_a_site_may_send_is_said_in_a_plain_sentence(more: str, told: str) -> None:
    Path("run.toml").write_text(HEART.format(rounds=3) + more, encoding="utf-8")
    text = " ".join(invoke("plan", "run.toml").stdout.split())
    assert f"What a site may send: {'the server sees no single update, so ' if more else ''}{told}" in text
