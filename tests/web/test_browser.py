"""The dashboard in a real browser, on a run that goes on: Debian's chromium, driven by Playwright.

Without a browser these tests are skipped and say so; with QUIETSUM_BROWSER=required, as in CI, they fail then.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quietsum.runs import Workspace
from quietsum.web import Dashboard, PageReader, open_dashboard
from scenes import tiny_toml
from web.places import RUNS, TRAINING, copy_old

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = (
    "playwright is not installed" if importlib.util.find_spec("playwright") is None
    else "" if CHROMIUM else "no chromium on this machine (apt-get install chromium)"
)  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING) and os.environ.get("QUIETSUM_BROWSER") != "required", reason=MISSING),
]
WIDTHS = (400, 700, 1000, 1600)
PAGES = (
    "/", "/runs/hybrid", "/runs/secure/rounds", f"/runs/{TRAINING}", "/compare", "/compare?run=secure&run=groups",
    "/planner", "/ledger", "/questions", "/questions/asked", "/audits", "/parties?run=groups", "/alerts?all=1",
    "/nothing",
)  # fmt: skip
CONTROLS = "a[href], button, input, select, summary, progress, [tabindex='0'], svg[role=img]"
NAMELESS = """(controls) => [...document.querySelectorAll(controls)].filter((one) => {
    const labelled = (one.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id));
    const name = one.getAttribute("aria-label") || [...(one.labels || [])].map((label) => label.textContent).join(" ")
      || labelled.map((label) => label ? label.textContent : "").join(" ") || one.textContent || "";
    return !name.trim();
  }).map((one) => one.outerHTML.slice(0, 120))"""
TWICE = """() => { const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  return ids.filter((id, place) => ids.indexOf(id) !== place); }"""


def test_ci_has_a_browser() -> None:
    """Skipped elsewhere; where it is required, it must be there."""
    assert not MISSING


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def serve(place: Path) -> Iterator[Dashboard]:
    dashboard = open_dashboard(PageReader(Workspace(path=place)), port=0, operator=True)
    thread = threading.Thread(target=dashboard.run)
    thread.start()
    yield dashboard
    dashboard.stop()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    yield from serve(copy_old(tmp_path_factory.mktemp("seen")))


def wait_for(page: Any, expression: str, seconds: float = 20.0) -> None:
    """Until ``expression`` is true. Playwright's own way evaluates a text in the page, which the policy forbids."""
    for _ in range(int(seconds / 0.05)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not in {seconds:g} s: {expression}")


def open_page(browser: Any, dashboard: Dashboard, *, width: int = 1000, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page that was let in, and all that the browser complains of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(dashboard.link)
    assert "token" not in page.url
    return page, complaints


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.some(2)
def test_every_page_renders_at_every_width(browser: Any, old: Dashboard, width: int) -> None:
    """No complaint of the browser, no sideways scrolling, a name for every control, no id twice, one heading."""
    page, complaints = open_page(browser, old, width=width, scheme="dark" if width == 700 else "light")
    for address in PAGES:
        page.goto(old.address + address)
        assert page.locator("h1").count() == 1, address
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        assert page.evaluate(NAMELESS, CONTROLS) == [], address
        assert page.evaluate(TWICE) == [], address
        missing = address == "/nothing"
        assert [text for text in complaints if not (missing and "404" in text)] == [], address
        complaints.clear()
    page.context.close()


def test_what_is_on_the_pages_is_what_was_asked_for(browser: Any, old: Dashboard) -> None:
    page, _ = open_page(browser, old)
    for name in RUNS:
        assert page.get_by_role("link", name=name, exact=True).count() == 1
    page.get_by_label("Find a run by its name").fill("hyb")
    wait_for(page, "document.querySelectorAll('#list tbody tr').length === 1")
    page.get_by_role("link", name="hybrid", exact=True).click()
    assert page.get_by_role("heading", name="hybrid").count() == 1
    page.goto(old.address + "/ledger")
    page.wait_for_selector("text=chain intact", timeout=30_000)
    entry = page.locator(".entries details").first
    entry.locator("summary").click()
    assert '"sequence"' in entry.locator("pre").inner_text()
    page.context.close()


def test_the_planner_answers_the_keyboard(browser: Any, old: Dashboard) -> None:
    page, complaints = open_page(browser, old)
    page.goto(old.address + "/planner")
    slider = page.get_by_label("ε, the promise")
    before = page.locator("#answer").inner_html()
    assert slider.get_attribute("aria-valuetext") == page.locator("#out-epsilon").inner_text() == "1"
    slider.focus()
    page.keyboard.press("ArrowRight")
    wait_for(page, "document.getElementById('out-epsilon').textContent === '1.2'")
    wait_for(page, "document.getElementById('epsilon').getAttribute('aria-valuetext') === '1.2'")
    assert page.locator("#answer").inner_html() != before
    assert "epsilon=" in page.url
    delta = page.get_by_label("δ, the probability outside it")
    delta.focus()
    page.keyboard.press("Home")
    page.wait_for_selector("text=This plan would be refused.")
    assert complaints == []
    page.context.close()


def test_the_keyboard_reaches_everything_and_skips_what_it_knows(browser: Any, old: Dashboard) -> None:
    page, _ = open_page(browser, old)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.context.close()


def test_gauges_move_while_rounds_pass(browser: Any, tmp_path: Path) -> None:
    """Without a reload: the page that was opened while the run went on shows its end."""
    plan = tmp_path / "run.toml"
    plan.write_text(tiny_toml(task="web.slow:SlowTask", rounds=40), encoding="utf-8")
    place = tmp_path / "watched"
    place.mkdir()
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), *(path for path in sys.path if path)])
    words = [sys.executable, "-m", "quietsum", "run", str(plan), "--workspace", str(place), "--name", "watched"]
    serving = serve(place)
    dashboard = next(serving)
    page, complaints = open_page(browser, dashboard)
    with subprocess.Popen(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:
        try:
            for _ in range(600):
                if (place / "runs" / "watched" / "run.db").is_file() or run.poll() is not None:
                    break
                page.wait_for_timeout(50)
            page.goto(dashboard.address + "/runs/watched")
            assert page.locator("#live .badge.live").count() == 1
            page.evaluate("window.opened = 'once'")
            seen = [page.locator(".gauge").get_attribute("data-spent")]
            for _ in range(2):
                wait_for(page, f"document.querySelector('.gauge').dataset.spent !== '{seen[-1]}'")
                seen.append(page.locator(".gauge").get_attribute("data-spent"))
            page.wait_for_selector("#live .badge.good", timeout=40_000)
        finally:
            if run.poll() is None and sys.exc_info()[0] is not None:
                run.kill()
        output = run.communicate(timeout=30)[0].decode()
    assert run.returncode == 0, output
    figures = [float(text) for text in seen if text]
    assert len(figures) == 3 and figures == sorted(set(figures))
    assert page.evaluate("window.opened") == "once"
    assert page.locator("#progress").inner_text().split() == ["40", "of", "40"]
    assert complaints == []
    page.context.close()
    for _ in serving:
        pass
