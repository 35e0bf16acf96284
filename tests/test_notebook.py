"""Values in a notebook: the numbers of the terminal, every text escaped, no style that reaches the page around it."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import quietsum as qs
from quietsum.ledger import Ledger
from quietsum.notebook import show_picture, show_table
from quietsum.privacy import figure_of
from quietsum.tradeoff import Outcome, analyze_privacy_utility_tradeoff
from scenes import one_line, quietsum, tiny_toml

HOSTILE = "<script>alert('1')</script> & \"more\""
PLAN = tiny_toml(rounds=3)


class Page(HTMLParser):
    """The texts, tags and attributes of a fragment; a tag that is not closed in its order fails."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.names: set[str] = set()
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def html_of(value: Any) -> str:
    text: str = value._repr_html_()
    page = Page(text)
    assert set(page.tags) <= {"table", "caption", "b", "thead", "tbody", "tr", "th", "td", "p", "img"}
    assert page.names <= {"style", "scope", "alt", "src"} and not re.search(
        r"color|background|http", text.split("base64")[0]
    )
    return text


def picture_in(text: str) -> str:
    """The SVG of the one image in ``text``."""
    (coded,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    return base64.b64decode(coded).decode("utf-8")


def texts_of(value: Any) -> str:
    return one_line(" ".join(Page(html_of(value)).texts))


def test_texts_of_others_are_escaped_everywhere() -> None:
    page = show_table(HOSTILE, [(HOSTILE, HOSTILE)], heads=(HOSTILE, HOSTILE), notes=(HOSTILE,))
    assert "<script" not in page and Page(page).texts.count(HOSTILE) == 6


def test_a_picture_is_an_image_of_its_own_that_says_what_it_shows() -> None:
    page = show_picture(
        '<svg><desc id="a">ε grows &amp; ends at &quot;2&quot;</desc><style>text { fill: red }</style></svg>'
    )
    assert "<style" not in page and "fill" not in page
    assert 'alt="ε grows &amp; ends at &quot;2&quot;"' in page and "<style>" in picture_in(page)


def test_a_plan_shows_what_differs_from_the_defaults_and_its_digest() -> None:
    plan = qs.load_plan(PLAN)
    shown = texts_of(plan)
    assert "privacy.record.epsilon 2.0" in shown and "federation.rounds 3" in shown and plan.digest in shown
    assert "aggregation.bits" not in shown  # the control: this one is at its default
    assert "privacy.style sample" in texts_of(qs.load_plan("[privacy]\nrecord = { epsilon = 1.0, delta = 1e-5 }\n"))


def test_a_forecast_shows_the_numbers_of_the_terminal(empty_folder: Path) -> None:
    Path("run.toml").write_text(PLAN, encoding="utf-8")
    found = qs.forecast("run.toml")
    shown, printed = texts_of(found), quietsum("plan", "run.toml").stdout
    for row in found.rows:
        epsilon = figure_of(row.epsilon)
        assert epsilon in shown and epsilon in printed
    assert "prefers-color-scheme: dark" in picture_in(html_of(found))
    assert "NO PRIVACY GUARANTEE" in texts_of(qs.forecast(PLAN.split("[privacy]")[0] + '[privacy]\nstyle = "none"\n'))


def test_a_run_and_its_ledger_show_the_numbers_of_the_terminal(empty_folder: Path) -> None:
    done = qs.run(PLAN, name="first")
    shown = texts_of(done)
    assert "Run first" in shown and "finished after round 3" in shown
    for one in done.guarantees:
        assert figure_of(one.epsilon) in shown
    assert "ε per record after each round" in picture_in(html_of(done))
    printed = quietsum("ledger", "show").stdout
    with Ledger.open("quietsum-workspace/ledger.db", read_only=True) as ledger:
        books = texts_of(ledger)
        spent = re.findall(r"\d+\.\d %", books)
        assert len(spent) == 2 and set(spent) <= set(re.findall(r"\d+\.\d %", printed))
        assert "first (3 of 3 rounds committed)" in books and ledger.head.hash[:16] in books
    assert "this ledger is closed" in texts_of(ledger)


def test_a_trade_off_shows_its_rows_its_share_and_a_picture() -> None:
    def outcome(epsilon: float | None, value: float, seed: int) -> Outcome:
        spent = None if epsilon is None else qs.Guarantee(epsilon=epsilon, delta=1e-5, method="exact")
        return Outcome(
            task="digits", epsilon=epsilon, delta=None if epsilon is None else 1e-5, guarantee=spent, seed=seed,
            metric="accuracy", value=value, on=HOSTILE,
        )  # fmt: skip

    one = [outcome(None, 0.98, 0), outcome(1.0, 0.9, 0)]
    assert "one seed, so no error bars" in texts_of(analyze_privacy_utility_tradeoff(one))
    found = analyze_privacy_utility_tradeoff([*one, outcome(None, 0.96, 1), outcome(1.0, 0.92, 1)])
    shown = texts_of(found)
    assert "≤ 1.0000" in shown and "0.9100" in shown and HOSTILE in shown and "<script" not in html_of(found)
    assert "without privacy" in picture_in(html_of(found))


def test_a_training_shows_each_epoch_and_what_it_spent() -> None:
    torch = pytest.importorskip("torch")
    from quietsum.learning import Epoch, TrainingHistory

    assert torch is not None
    spent = qs.Guarantee(epsilon=1.23456, delta=1e-5, method="exact")
    epochs = tuple(
        Epoch(
            epoch=number, epochs=2, steps=10, spent=spent, budget=2.0, metrics={"accuracy": 0.5 + number / 10},
            metrics_on=HOSTILE, max_grad_norm=1.0,
        ) for number in (1, 2)
    )  # fmt: skip
    shown = html_of(TrainingHistory(epochs=epochs, stopped="finished", guarantee=spent, lost_steps=3))
    texts = one_line(" ".join(Page(shown).texts))
    assert "1 1.2346 0.600" in texts and "2 1.2346 0.700" in texts and "3 steps were charged and lost" in texts
    assert "<script" not in shown and "budget" in picture_in(shown)
    assert "after 0 epochs" in texts_of(TrainingHistory(epochs=(), stopped="budget", guarantee=spent))
