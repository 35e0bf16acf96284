"""``quietsum local``: from answers to reports, from reports to estimates, and what is refused on the way."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app

DOMAIN = ("--domain", "never,sometimes,daily")
SHARES = {"never": 0.6, "sometimes": 0.25, "daily": 0.15}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{place},{word},{18 + place % 60}" for word, share in SHARES.items() for place in range(int(4000 * share))]
    Path("survey.csv").write_text("id,smokes,age\n" + "\n".join(rows) + "\n", encoding="utf-8")


def local(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["local", *(str(argument) for argument in arguments)])


def values_of(*arguments: object) -> dict[str, Any]:
    result = local(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def privatize(output: str = "reports.csv", *extra: object, epsilon: float = 2.0) -> dict[str, Any]:
    options = extra or DOMAIN
    return values_of("privatize", "survey.csv", "-c", "smokes", "--epsilon", epsilon, *options, "-o", output)


def refused(result: Result, told: str) -> None:
    """One line of error, code 2, and no new file."""
    assert result.exit_code == 2, result.stdout
    assert result.stdout == ""
    assert told in " ".join(result.stderr.split()), result.stderr
    assert "Traceback" not in result.stderr


def listing() -> dict[str, int]:
    return {entry.name: entry.stat().st_size for entry in sorted(Path().iterdir())}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("protocol", ["auto", "k-rr", "oue", "sue", "rappor", "olh", "hadamard", "cms", "hcms"])
def test_a_survey_goes_from_csv_to_estimates_near_the_truth(protocol: str, kind: str) -> None:
    written = privatize(f"reports.{kind}", *DOMAIN, "--protocol", protocol)
    assert written["reports"] == 4000
    found = values_of("estimate", f"reports.{kind}")
    assert found["users"] == 4000
    for one in found["estimates"]:
        assert abs(one["value"] - SHARES[one["label"]]) < 6 * one["standard_error"]
        assert one["low"] < one["value"] < one["high"]


def test_the_answers_may_stand_in_a_public_file_too() -> None:
    Path("answers.txt").write_text("never\nsometimes\n\ndaily\n", encoding="utf-8")
    one = privatize("one.csv", "--values", "answers.txt")
    two = privatize("two.csv", "--domain", "answers.txt")
    three = privatize("three.csv", *DOMAIN, "--protocol", "KRR")
    assert one["domain"] == two["domain"] == three["domain"]
    assert three["protocol"] == "k-rr"
    assert values_of("estimate", "one.csv", "two.csv", "three.csv")["users"] == 12_000


def test_the_header_states_protocol_epsilon_domain_digest_hashes_and_version() -> None:
    privatize("reports.csv", *DOMAIN, "--protocol", "cms", "--seed", 5)
    lines = Path("reports.csv").read_text().splitlines()
    header, end = json.loads(lines[0].removeprefix("# ")), json.loads(lines[-1].removeprefix("# "))
    assert (header["protocol"], header["epsilon"], header["note"]) == ("cms", 2.0, "smokes")
    assert len(header["domain"]["digest"]) == 64
    assert header["parameters"] == {"functions": 256, "width": 256, "seed": 5}
    assert header["quietsum"] == "0.1.0"
    assert end["end"] == 4000 == len(lines) - 3


def test_numbers_are_estimated_by_their_mean_and_by_bins() -> None:
    ages = [18 + place % 60 for share in SHARES.values() for place in range(int(4000 * share))]
    values_of("privatize", "survey.csv", "-c", "age", "-e", 4, "--range", "0,100", "-o", "mean.csv")
    mean = values_of("estimate", "mean.csv")["estimates"][0]
    assert abs(mean["value"] - np.mean(ages)) < 6 * mean["standard_error"]
    values_of("privatize", "survey.csv", "-c", "age", "-e", 4, "--bins", "0,30,50,100", "-o", "bins.csv")
    found = values_of("estimate", "bins.csv")["estimates"]
    assert [one["label"] for one in found] == ["0 to under 30", "30 to under 50", "50 to 100"]
    assert abs(found[0]["value"] - np.mean(np.array(ages) < 30)) < 6 * found[0]["standard_error"]


def test_reports_of_several_sites_add_up_when_they_are_made_alike() -> None:
    privatize("one.csv", *DOMAIN, "--protocol", "hcms")
    values_of("privatize", "survey.csv", "-c", "smokes", "--like", "one.csv", "-o", "two.jsonl")
    assert values_of("estimate", "one.csv", "two.jsonl")["users"] == 8000


def test_people_read_a_table_a_remark_and_the_next_command() -> None:
    done = local("privatize", "survey.csv", "-c", "smokes", "-e", 1, *DOMAIN, "-o", "reports.csv")
    assert "4,000 reports by k-rr" in done.stdout
    assert "next: " in done.stdout and "local estimate reports.csv" in done.stdout
    shown = local("estimate", "reports.csv")
    assert "95 % interval" in shown.stdout and "sometimes" in shown.stdout
    assert "--plot" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_the_plot_is_an_svg_with_a_bar_for_each_answer() -> None:
    privatize()
    values = values_of("estimate", "reports.csv", "--plot", "shares.svg")
    assert values["plot"] == "shares.svg"
    text = Path("shares.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert all(word in text for word in SHARES)
    assert text.count('class="line s0"') == text.count('class="line dot s0"') == len(SHARES)


def test_projected_shares_are_labelled_and_add_up_to_one() -> None:
    privatize(epsilon=0.2)
    found = values_of("estimate", "reports.csv", "--project")
    assert found["projected"] is True
    assert sum(one["value"] for one in found["estimates"]) == pytest.approx(1)
    assert "biased" in local("estimate", "reports.csv", "--project").stdout


def test_a_simulation_shows_errors_by_formula_and_as_seen() -> None:
    found = values_of("simulate", "--answers", 20, "-e", 1, "-n", 5000, "--repeat", 5)
    assert {row["protocol"] for row in found["protocols"]} >= {"k-rr", "oue", "olh", "hadamard", "rappor"}
    assert all(0.5 < row["seen"] / row["standard_error"] < 1.5 for row in found["protocols"])
    assert found["recommended"] == "oue"
    means = values_of("simulate", "--range", "0,10", "-e", 1, "-n", 5000, "--repeat", 5, "--protocol", "hybrid")
    assert [row["protocol"] for row in means["protocols"]] == ["hybrid"]
    for domain in (("--domain", "a,b,c"), ("--bins", "0,1,2,3")):
        assert local("simulate", *domain, "-e", 1, "-n", 100, "--repeat", 2).exit_code == 0


BAD = [
    (("-c", "smokes", "-e", 0, *DOMAIN), "must be greater than 0"),
    (("-c", "smokes", "-e", -1, *DOMAIN), "must be greater than 0"),
    (("-c", "smokes", "-e", "nan", *DOMAIN), "is not finite"),
    (("-c", "smokes", "-e", 50, *DOMAIN), "is above 20"),
    (("-c", "smokes", *DOMAIN), "epsilon = None is missing"),
    (("-c", "smokes", "-e", 1), "never read off the answers"),
    (("-c", "smokes", "-e", 1, "--domain", "never,daily"), "row 2,401, column 'smokes': is not in the domain"),
    (("-c", "smokes", "-e", 1, "--domain", "never"), "between 2 and"),
    (("-c", "smokes", "-e", 1, "--domain", "never,never"), "is named twice"),
    (("-c", "smokes", "-e", 1, *DOMAIN, "--bins", "0,1,2"), "does not go with --domain"),
    (("-c", "smokes", "-e", 1, "--values", "survey.csv"), "is the private file itself"),
    (("-c", "smokes", "-e", 1, "--values", "none.txt"), "cannot be read"),
    (("-c", "smokes", "-e", 1, "--range", "0,1"), "row 1, column 'smokes': is not a number"),
    (("-c", "age", "-e", 1, "--range", "0,50"), "column 'age': lies outside 0 to 50"),
    (("-c", "age", "-e", 1, "--range", "5"), "is not a lower and an upper bound"),
    (("-c", "age", "-e", 1, "--bins", "0,x"), "is no list of numbers"),
    (("-c", "gone", "-e", 1, *DOMAIN), "has no column 'gone'"),
    (("-c", "smokes", "-e", 1, *DOMAIN, "--protocol", "warner"), "choose one of"),
    (("-c", "smokes", "-e", 1, *DOMAIN, "--protocol", "duchi"), "needs bounds for numbers"),
    (("-c", "smokes", "-e", 1, *DOMAIN, "--seed", 1), "takes no seed"),
    (("-c", "smokes", "-e", 1, *DOMAIN, "--like", "x.csv"), "does not go with --like"),
    (("-c", "smokes", "--like", "none.csv"), "cannot be read"),
    (("-c", "smokes", "-e", 1, *DOMAIN, "--clip"), "means nothing to a list of answers"),
]


@pytest.mark.parametrize(("options", "told"), BAD, ids=[told for _, told in BAD])
def test_a_bad_privatization_ends_with_2_and_leaves_no_file(options: tuple[object, ...], told: str) -> None:
    before = listing()
    refused(local("privatize", "survey.csv", *options, "-o", "reports.csv"), told)
    assert listing() == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "its first line is empty"),
        ("x\n", "holds no answer"),
        ("x\n1\nnan\n", "row 2, column 'x': is not a finite number"),
        ("x\n1\n-inf\n", "row 2, column 'x': is not a finite number"),
        ("x\n1\n1e999\n", "row 2, column 'x': is not a finite number"),
        ("x,y\n1,2\n3\n", "row 2, column 'x': has not 2 cells"),
        ("x,y\n1,2\n,5\n", "row 2, column 'x': is empty"),
        ("x\n1\n\n2\n", "row 2, column 'x': is empty"),
        ("x,x\n1,2\n", "holds the column 'x' twice; rename one"),
        ("x;y\r\n1,5;2\r\n", "cells are separated by ';'; save it with commas"),
        ("x\ty\n1\t2\n", "cells are separated by tabs"),
        ("X,y\n1,2\n", "has no column 'x'"),
        ("y,x.\n1,2\n", "did you mean 'x.'?"),
        ("x\n1,5\n", "row 1, column 'x': has not 1 cells"),
        ('x,y\n"1,5",2\n', "write it like 42 or 3.5"),
        ('x\n1\n"2\n', "is no CSV in UTF-8 at line 3"),
    ],
)
def test_a_broken_table_ends_with_2_and_leaves_no_file(text: str, told: str) -> None:
    Path("bad.csv").write_text(text, encoding="utf-8")
    before = listing()
    refused(local("privatize", "bad.csv", "-c", "x", "-e", 1, "--range", "0,5", "-o", "reports.csv"), told)
    assert listing() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_stops_it_finds_no_part_of_the_reports(number: signal.Signals, code: int) -> None:
    words = ["local", "privatize", "-", "-c", "x", "-e", "1", "--domain", "yes,no", "-o", "reports.csv"]
    before = set(listing())
    with subprocess.Popen(
        [sys.executable, "-m", "quietsum", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"x\n" + b"yes\n" * 50)
        process.stdin.flush()
        while set(listing()) == before:  # the draft appears beside the output
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert process.stderr.read().decode() == "stopped: reports.csv was not written\n"
    assert set(listing()) == before


def test_answers_may_come_through_a_pipe() -> None:
    words = ["local", "privatize", "-", "-c", "x", "-e", "1", "--domain", "yes,no", "-o", "reports.csv"]
    process = subprocess.run(
        [sys.executable, "-m", "quietsum", *words], input="\ufeffx\r\n" + "yes\r\n" * 500, capture_output=True,
        text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "500 reports" in process.stdout and "with 500 people" in " ".join(process.stdout.split())


def test_figures_of_a_table_have_two_digits_of_the_smallest_error_and_the_same_decimals() -> None:
    privatize("reports.csv", *DOMAIN)
    lines = local("estimate", "reports.csv", "--plot", "reports.svg").stdout.splitlines()
    shown = [re.findall(r"-?\d+\.\d+", line) for line in lines if line.startswith(tuple(SHARES))]
    assert {len(figure.split(".")[1]) for figures in shown for figure in figures} == {
        4
    }  # the smallest error is near 0.009
    assert all(len(figures) == 4 for figures in shown)
    assert all(f">{figures[0]}<" in Path("reports.svg").read_text() for figures in shown)


def test_an_error_late_in_a_long_file_leaves_no_part_of_the_reports() -> None:
    Path("long.csv").write_text("x\n" + "yes\n" * 100_000 + "secret\n", encoding="utf-8")
    before = listing()
    result = local("privatize", "long.csv", "-c", "x", "-e", 1, "--domain", "yes,no", "-o", "reports.csv")
    refused(result, "row 100,001")
    assert "secret" not in result.stderr
    assert listing() == before


def test_a_file_that_is_no_text_and_an_output_of_no_kind_are_refused() -> None:
    Path("bad.csv").write_bytes(b"x\n\xff\xfe\n")
    refused(local("privatize", "bad.csv", "-c", "x", "-e", 1, *DOMAIN, "-o", "r.csv"), "is no CSV in UTF-8")
    for output, told in (("r.txt", "neither .csv nor .jsonl"), ("no/r.csv", "lies in no folder")):
        refused(local("privatize", "survey.csv", "-c", "smokes", "-e", 1, *DOMAIN, "-o", output), told)


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quietsum.cli.survey.local._LONGEST_LINE", 1 << 16)
    Path("endless.csv").write_text("a" * (1 << 16))
    refused(local("privatize", "endless.csv", "-c", "a", "-e", 1, "--domain", "a,b", "-o", "out.csv"), "is no CSV")
    Path("endless.csv").write_text("a\n" + "b\n" * (1 << 16))
    assert local("privatize", "endless.csv", "-c", "a", "-e", 1, "--domain", "a,b", "-o", "out.csv").exit_code == 0


def test_reports_are_never_overwritten_since_new_ones_cost_again() -> None:
    privatize()
    before = Path("reports.csv").read_bytes()
    refused(
        local("privatize", "survey.csv", "-c", "smokes", "-e", 1, *DOMAIN, "-o", "reports.csv"), "cost their ε again"
    )
    assert Path("reports.csv").read_bytes() == before


def test_empty_cells_and_numbers_beyond_the_bounds_are_answers_where_that_is_said() -> None:
    Path("gaps.csv").write_text("x,y\n1,\n,7\n200,3\n", encoding="utf-8")
    done = values_of(
        "privatize", "gaps.csv", "-c", "x", "-e", 1, "--range", "0,5", "--missing", "0", "--clip", "-o", "r.csv"
    )
    assert done["reports"] == 3


def test_reports_of_different_surveys_are_not_added() -> None:
    privatize("a.csv")
    privatize("b.csv", epsilon=1.0)
    privatize("c.csv", *DOMAIN, "--protocol", "oue")
    privatize("d.csv", "--domain", "daily,never,sometimes")
    privatize("e.csv", *DOMAIN, "--protocol", "cms", "--seed", 1)
    privatize("f.csv", *DOMAIN, "--protocol", "cms", "--seed", 2)
    before = listing()
    for files, told in (
        (("a.csv", "b.csv"), "ε 1.0 instead of 2.0"),
        (("a.csv", "c.csv"), "protocol oue instead of k-rr"),
        (("a.csv", "d.csv"), "another domain"),
        (("e.csv", "f.csv"), "hash parameters"),
        (("a.csv", "a.csv"), "is named twice"),
    ):
        refused(local("estimate", *files, "--plot", "out.svg"), told)
    Path("copy.csv").write_bytes(Path("a.csv").read_bytes())
    refused(local("estimate", "a.csv", "copy.csv"), "holds the same reports as a.csv")
    Path("copy.csv").unlink()
    assert listing() == before


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_cut_changed_or_foreign_file_of_reports_is_refused(kind: str) -> None:
    name = f"reports.{kind}"
    privatize(name, *DOMAIN, "--protocol", "rappor")
    whole = Path(name).read_bytes()
    lines = whole.splitlines(keepends=True)
    middle = lines[2000]
    cases = {
        b"": "is empty",
        b"hello\n": "is no file of local reports",
        b'{"a": 1}\n': "is no file of local reports",
        whole[: len(whole) // 2]: "was cut",
        b"".join(lines[:-1]): "was cut",
        b"".join([*lines[:100], *lines[101:]]): "are not those that its end states",
        b"".join([*lines[:100], b"junk\n", *lines[101:]]): "is no report of its protocol",
        b"".join([*lines[:2000], middle, middle, *lines[2001:]]): "are not those that its end states",
        whole + b"1\n": "goes on after its last line",
        b"".join([lines[0].replace(b'"never"', b'"ever"'), *lines[1:]]): "its digest names",
        b"".join([lines[0].replace(b'"rappor"', b'"later"', 1), *lines[1:]]): "not known here",
        b"".join([lines[0].replace(b'"quietsum_local": 1', b'"quietsum_local": 2'), *lines[1:]]): "another format",
    }
    cases[b"".join([lines[0].replace(b'"epsilon": 2.0', b'"epsilon": 1.5', 1), *lines[1:]])] = "its end states"
    for content, told in cases.items():
        Path("bad." + kind).write_bytes(content)
        refused(local("estimate", f"bad.{kind}", "--plot", "out.svg"), told)
        assert not Path("out.svg").exists()
    for path in ("none.csv", "."):
        refused(local("estimate", path), "reports =")


def test_estimates_refuse_what_makes_no_sense() -> None:
    privatize()
    values_of("privatize", "survey.csv", "-c", "age", "-e", 4, "--range", "0,100", "-o", "mean.csv")
    for options, told in (
        (("reports.csv", "--confidence", 1.5), "confidence"),
        (("reports.csv", "--plot", "out.png"), "is not named .svg"),
        (("mean.csv", "--project"), "only shares add up to one"),
        (("reports.csv", "--plot", "-", "--json"), "both want stdout"),
    ):
        refused(local("estimate", *options), told)
    refused(local("simulate", "-e", 1), "is missing")
    refused(local("simulate", "-e", 1, "--answers", 5, "-n", 10**9), "200 million")


def test_a_terminal_sees_a_bar_and_a_pipe_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.cli.survey.local import _progress

    for terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal  # type: ignore[method-assign, misc]
        monkeypatch.setattr(sys, "stderr", stream)
        with _progress(Path("survey.csv"), False) as seen:
            seen(Path("survey.csv").stat().st_size)
        assert ("survey.csv" in stream.getvalue() and "100%" in stream.getvalue()) is terminal


@pytest.mark.slow
@pytest.mark.long
def test_a_million_answers_need_no_more_memory_than_a_hundred_thousand() -> None:
    """Peak memory of a whole process, as the system counts it."""

    def peak(rows: int) -> int:
        with Path("big.csv").open("w") as file:
            file.write("x\n")
            for word in ("never", "sometimes", "daily", "daily"):
                file.write(f"{word}\n" * (rows // 4))
        code = (
            "import resource, sys; from quietsum.cli.app import app; "
            "app(sys.argv[1:], standalone_mode=False); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        made = [sys.executable, "-c", code, "local"]
        found = 0
        for arguments in (
            ["privatize", "big.csv", "-c", "x", "-e", "1", *DOMAIN, "-p", "oue", "-o", f"{rows}.csv"],
            ["estimate", f"{rows}.csv"],
        ):
            done = subprocess.run([*made, *arguments], capture_output=True, text=True, env={**os.environ}, check=True)
            found = max(found, int(done.stderr.splitlines()[-1]))
        return found

    few, many = peak(100_000), peak(1_000_000)
    assert many - few < 16 * 1024  # kilobytes; the million's reports alone fill tens of megabytes in memory
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
