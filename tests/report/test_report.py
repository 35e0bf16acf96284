"""The report of a run: what the file says the page says, whatever is in it, and every number can be checked."""

from __future__ import annotations

import json
import math
import re
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum import report
from quietsum.errors import CorruptState
from quietsum.ledger import Head, Ledger
from quietsum.plan import PartyFacts, load_plan
from quietsum.report.pages.page import render_page
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import Metrics, task_named
from scenes import invoke, tiny_toml
from tiny import TinyTask

TINY = tiny_toml()
PUBLIC = TINY.replace('TinyTask"', 'TinyTask"\noptions = { public = "made up for a test" }')
NONE = PUBLIC.replace("record = { epsilon = 2.0, delta = 1e-3 }", 'style = "none"')
VOID = {"meta", "br", "hr", "img", "input", "link"}


pytestmark = pytest.mark.usefixtures("empty_folder")


def run(text: str = TINY, name: str = "run", code: int = 0) -> tuple[dict[str, Any], str]:
    """The two files of a run."""
    Path("run.toml").write_text(text, encoding="utf-8")
    result = invoke("run", "run.toml", "--name", name)
    assert result.exit_code == code, result.output
    folder = Path("quietsum-workspace/runs") / name
    return json.loads((folder / "report.json").read_text()), (folder / "report.html").read_text()


class Page(HTMLParser):
    """Reads a page: its text, its tables, and whether every tag that opens also closes, in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    def table(self, first: str) -> list[list[str]]:
        """The rows of the table whose head begins with ``first``."""
        (found,) = [table[1:] for table in self.tables if table[0][0] == first]
        return found


def words(parts: list[str]) -> str:
    return " ".join(" ".join(parts).split())


# ---------------------------------------------------------------------------------------------- the file


def test_the_file_says_what_show_says() -> None:
    values, _ = run()
    shown = json.loads(invoke("show", "run", "--json").stdout)
    assert {**shown, "signature": values["signature"]} == values  # a look needs no key


def test_the_guarantees_are_the_ledgers_and_the_curve_ends_there() -> None:
    values, _ = run()
    with Ledger.open("quietsum-workspace/ledger.db") as ledger:
        ledger.verify()
        spent = [(one.epsilon, one.delta, one.unit, one.observer) for one in ledger.spending("run")]
    assert [(one["epsilon"], one["delta"], one["unit"], one["observer"]) for one in values["guarantees"]] == spent
    assert [point["round"] for point in values["spent"]] == [1, 2, 3]
    curve = [point["epsilon"] for point in values["spent"]]
    assert curve == sorted(curve) and curve[-1] == values["guarantees"][0]["epsilon"] <= 2.0
    assert {point["unit"] for point in values["spent"]} == {"record"}


def test_its_head_is_in_the_ledger_and_anchors_it() -> None:
    values, _ = run()
    with Ledger.open("quietsum-workspace/ledger.db") as ledger:
        assert ledger.contains(Head.from_dict(values["ledger"]["head"]))
        assert values["ledger"]["public_key"] == ledger.identity.public_key
    result = invoke("ledger", "verify", "--anchor", "quietsum-workspace/runs/run/report.json")
    assert result.exit_code == 0 and "kept heads are in the chain" in result.stdout


def test_its_metrics_are_those_of_the_kept_model_and_say_on_which_data() -> None:
    values, _ = run()
    params, _ = checkpoints.read_model(Path("quietsum-workspace/runs/run/model.safetensors"))
    measured = TinyTask().evaluate(params)
    assert values["metrics"] == [{"name": "distance", "value": measured.values["distance"], "on": measured.on}]


def test_its_plan_is_the_frozen_one() -> None:
    values, _ = run()
    assert values["plan"] == load_plan(Path("quietsum-workspace/runs/run/plan.toml")).to_dict()
    assert values["plan_digest"] == load_plan(TINY).digest


# ---------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("text", [TINY, PUBLIC, NONE], ids=["protected", "public", "none"])
def test_the_page_is_balanced_and_needs_nothing_from_elsewhere(text: str) -> None:
    _, html = run(text)
    seen = Page(html)
    assert html.startswith("<!doctype html>")
    assert (seen.open, seen.wrong) == ([], [])
    assert not seen.tags & {"script", "link", "iframe", "object", "embed", "img"}
    assert not [one for one in seen.attributes if one[1] in ("src", "href", "action") or one[1].startswith("on")]
    assert not re.search(r"url\(|@import", html)
    assert ("html", "lang", "en") in seen.attributes and ("meta", "charset", "utf-8") in seen.attributes


def test_the_control_an_unbalanced_page_is_found() -> None:
    assert Page("<p><b>no</p></b>").wrong == ["p", "b"]
    assert Page("<div><p>no</p>").open == ["div"]


def test_the_numbers_of_the_page_are_those_of_the_file() -> None:
    values, html = run()
    seen = Page(html)
    rows = seen.table("protects one")
    assert len(rows) == len(values["guarantees"]) == 2
    for row, one in zip(rows, values["guarantees"], strict=True):
        assert row[0] == one["unit"]
        assert 0 <= float(row[2]) - one["epsilon"] < 1.01e-4  # rounded up
        assert 0 <= one["epsilon_lower"] - float(row[3]) < 1.01e-4  # rounded down
        assert float(row[4].replace("\N{NON-BREAKING HYPHEN}", "-")) == one["delta"]
        assert row[5] == one["neighbours"]
    assert [[name, float(value), on] for name, value, on in seen.table("measure")] == [
        [one["name"], pytest.approx(one["value"], abs=5e-4), one["on"]] for one in values["metrics"]
    ]
    assert [row[:3] for row in seen.table("party")] == [["north", "points-north", "12"], ["south", "points-south", "8"]]
    ledger = dict(row for row in seen.table("what"))
    head = values["ledger"]["head"]
    assert (ledger["head"], ledger["signature (Ed25519)"]) == (head["hash"], head["signature"])
    assert ledger["entries when this was written"] == str(head["sequence"])
    plan = dict(row for row in seen.table("setting"))
    assert plan["federation.rounds"] == "3" and plan["privacy.record.epsilon"] == "2.0"
    text = words(seen.text)
    for said in (*values["sentences"], *values["warnings"], values["summary"], values["plan_digest"]):
        assert words([said]) in text
    assert "per record" in values["sentences"][0]


def test_a_page_made_from_other_numbers_says_other_numbers() -> None:
    """The control: nothing on the page is typed in."""
    values, html = run()
    other = {**values, "guarantees": [{**one, "epsilon": 1.2345} for one in values["guarantees"]]}
    assert "1.2345" in render_page(other) and "1.2345" not in html


def test_style_none_is_a_banner_and_no_figure() -> None:
    values, html = run(NONE)
    seen = Page(html)
    assert values["guarantees"] == values["spent"] == []  # above all no ε of 0: nothing was promised
    assert ("p", "class", "none") in seen.attributes
    assert words(seen.text).count("NO PRIVACY GUARANTEE") == 1
    assert "ε" not in words(seen.text) and "<svg" not in html


def test_warnings_are_on_the_page_as_warnings() -> None:
    values, html = run(TINY + 'noise = "fast"\n')
    assert any("not floating-point safe" in text for text in values["warnings"])
    assert ("p", "class", "warning") in Page(html).attributes
    assert "not floating-point safe" in html


def test_public_data_says_why_no_budget_was_used() -> None:
    values, html = run(PUBLIC)
    assert values["notes"] == ["No lifetime budget was used: made up for a test."]
    assert "No lifetime budget was used: made up for a test." in html


def test_the_curve_on_the_page_says_its_unit_and_its_budget() -> None:
    _, html = run()
    chart = html[html.index("<svg") : html.index("</svg>")]
    assert "ε per record" in chart and "budget of this plan" in chart


# ------------------------------------------------------------------------------------------ hostile names

EVIL = "<script>alert('x')</script>"


class Hostile(TinyTask):
    title = f"a {EVIL} mean & more"

    def parties(self) -> tuple[PartyFacts, ...]:
        names = {EVIL: 12, 'quo"te</td><b>': 8}
        return tuple(
            PartyFacts(name=name, dataset=f"<i>{name}", size=size, public=f"because {EVIL}")
            for name, size in names.items()
        )

    def rows(self, party: str) -> Any:
        return super().rows("north" if party == EVIL else "south")

    def evaluate(self, params: Any) -> Metrics:
        return Metrics(values={f"{EVIL} score": float(np.linalg.norm(params))}, on=f"</table>{EVIL}")


def test_hostile_names_titles_and_reasons_stay_text(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("hostile")
    module.Hostile = Hostile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hostile", module)
    _, html = run(TINY.replace("tiny:TinyTask", "hostile:Hostile"))
    seen = Page(html)
    assert (seen.open, seen.wrong) == ([], [])
    assert not seen.tags & {"script", "i", "b"}
    assert seen.table("party")[0][0] == EVIL  # there, as text
    assert seen.table("measure")[0][2] == f"</table>{EVIL}"
    assert EVIL in words(seen.text) and EVIL not in html


def test_a_run_cannot_have_a_hostile_name() -> None:
    Path("run.toml").write_text(TINY, encoding="utf-8")
    assert invoke("run", "run.toml", "--name", "<b>").exit_code == 2


def test_the_page_escapes_every_text_that_a_report_can_hold() -> None:
    values, _ = run()

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(one) for key, one in value.items()}
        if isinstance(value, list):
            return [spoilt(one) for one in value]
        return value + EVIL if isinstance(value, str) and value not in ("server", "recipients", "record") else value

    html = render_page(spoilt(values))
    assert EVIL in words(Page(html).text) and "<script" not in html


# ------------------------------------------------------------------------------------- how a run ended


def stopped(name: str = "half") -> Any:
    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == 1:
                raise KeyboardInterrupt

    plan = load_plan(TINY)
    task = task_named(plan.task.name, plan.task.options)
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=Workspace.at(), name=name, task=task, watchers=[Stop()])
    return Workspace.at().find(name)


def test_the_report_of_an_unfinished_run_says_so_and_claims_the_whole_plan() -> None:
    values = report.write(stopped(), Workspace.at())
    html = Path("quietsum-workspace/runs/half/report.html").read_text()
    assert (values["outcome"], values["round"], values["rounds"]) == ("interrupted", 1, 3)
    assert "1 of 3 rounds, not finished, interrupted." in html
    assert [one["epsilon"] for one in values["guarantees"]] == [pytest.approx(2.0, rel=1e-6)] * 2
    assert len(values["spent"]) == 1 and values["spent"][0]["epsilon"] < 1.5


def test_the_report_of_a_run_that_stopped_says_what_stopped_it() -> None:
    values, html = run(TINY.replace("rounds = 3", "rounds = 3\nsimulate = { drop_outs = 1.0 }"), code=6)
    assert values["outcome"] == "too-few-parties"
    assert "0 of 3 rounds, stopped, too few parties." in html
    assert [one["epsilon"] for one in values["guarantees"]] == [pytest.approx(2.0, rel=1e-6)] * 2


def test_where_no_lower_bound_is_claimed_the_page_says_why_and_shows_no_zero() -> None:
    values, html = run(TINY.replace("rounds = 3", "rounds = 3\nspare_attempts = 1"))
    assert [one["epsilon_lower"] for one in values["guarantees"]] == [0.0, 0.0]
    assert "none stated" in html and "pays for spare attempts" in html and "<td>0.0000</td>" not in html


def test_the_control_a_run_that_went_through_its_schedule_has_a_lower_bound() -> None:
    values, html = run()
    assert all(one["epsilon_lower"] > 0 for one in values["guarantees"])
    assert "none stated" not in html and "pays for spare attempts" not in html


def test_a_finished_run_that_is_resumed_has_the_same_report() -> None:
    values, html = run()
    assert invoke("run", "--resume", "run").exit_code == 0
    folder = Path("quietsum-workspace/runs/run")
    assert json.loads((folder / "report.json").read_text()) == values
    assert (folder / "report.html").read_text() == html


def test_a_report_without_its_own_ledger_is_refused() -> None:
    folder = stopped()
    Path("run.toml").write_text(TINY, encoding="utf-8")
    assert invoke("run", "run.toml", "--workspace", "elsewhere").exit_code == 0
    with pytest.raises(CorruptState, match="is not the ledger of run half"):
        report.build(folder, Workspace(path=Path("elsewhere")))


# ----------------------------------------------------------------------------- the sentence, by a second oracle


def test_the_sentence_bounds_the_best_attacker_and_rounds_against_itself() -> None:
    values, _ = run()
    said = re.search(r"more often than ([\d.]+) % .* ε ≤ ([\d.]+) per record at δ = ([\d.e-]+)", values["sentences"][0])
    assert said is not None
    right, epsilon, delta = map(float, said.groups())
    assert epsilon >= values["guarantees"][0]["epsilon"] and delta == values["guarantees"][0]["delta"]
    # (ε, δ) alone allows (e^ε + 2δ − 1) / (e^ε + 1) as advantage (Kairouz, Oh, Viswanath 2015); the whole curve less.
    loose = 50 * (1 + (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1))
    assert 50 < right < loose
    # At least what this attacker reaches: he looks at the three noisy steps, each at rate 1/2, and sums them up.
    noise = values["noise_multiplier"]
    rng = np.random.default_rng(7)
    count = 200_000
    absent = rng.normal(size=(count, 3)) * noise
    present = rng.normal(size=(count, 3)) * noise + (rng.random((count, 3)) < 0.5)
    cut = 0.75
    reached = 50 * (1 + np.mean(present.sum(axis=1) > cut) - np.mean(absent.sum(axis=1) > cut))
    assert reached < right < reached + 5


def test_a_run_across_machines_says_that_the_sites_keep_books_and_not_who_took_part(tmp_path: Path) -> None:
    from federation.sites import places_for, plan_of, remote
    from federation.world import Clock

    plan, clock = plan_of(), Clock()
    federation, carrier, _ = remote(places_for(plan, tmp_path), clock=clock)
    del carrier.sites["node-va"]
    arrived = carrier.receive

    def arrives(wait: float) -> Any:  # nobody waits in truth for who is not there
        found = arrived(wait)
        clock.now += 0.0 if found else wait
        return found

    carrier.receive = arrives  # type: ignore[method-assign]
    workspace = Workspace.at(tmp_path / "workspace")
    result = start(plan, workspace=workspace, federation=federation)
    values = report.build(result.folder, workspace)
    assert values["ledger"]["sites_keep_books"] is True
    text = render_page(values)
    assert "Every site also keeps a ledger of its own" in text and "left out" not in text
