"""``quietsum local``: surveys whose answers are randomised before anybody collects them."""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import itertools
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next, text_width
from quietsum.cli.shared.signals import Interruption
from quietsum.cli.survey.shuffle import amplify, shuffle
from quietsum.errors import InvalidParameter, printable
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import Bins, Categories, Estimate, Header, Interval, LocalProtocol

__all__ = ["app"]

app = typer.Typer(
    name="local",
    help="Surveys under local privacy: answers are randomised before anybody collects them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_SHARES = "k-rr, oue, sue, rappor, olh, hadamard, cms, hcms"
_MEANS = "duchi, piecewise, hybrid"
_SHOWN = 20  # answers in a table for people
_DRAWN = 40  # in a picture
_LARGEST_LIST = 1 << 26
_LONGEST_LINE = 1 << 24  # characters of one row
_TELLING = 128  # reports that never come out the same twice
EpsilonOption = Annotated[
    float | None, typer.Option("--epsilon", "-e", metavar="ε", help="What one report may cost.", show_default=False)
]
ProtocolOption = Annotated[
    str,
    typer.Option("--protocol", "-p", metavar="NAME", help=f"auto; {_SHARES}; with --range {_MEANS}."),
]
DomainOption = Annotated[
    str | None,
    typer.Option("--domain", metavar="A,B,…", help="All possible answers, which are public.", show_default=False),
]
ValuesOption = Annotated[
    Path | None,
    typer.Option("--values", metavar="FILE", help="The same from a public file, one a line.", show_default=False),
]
BinsOption = Annotated[
    str | None, typer.Option("--bins", metavar="E,E,…", help="Numbers, cut at public edges.", show_default=False)
]
RangeOption = Annotated[
    str | None,
    typer.Option("--range", metavar="LOW,HIGH", help="Numbers whose mean is wanted: public bounds.",
                 show_default=False),
]  # fmt: skip
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="Public seed of rappor's, cms's and hcms's hashes.", show_default=False),
]
PermanentOption = Annotated[
    float | None,
    typer.Option("--permanent-epsilon", metavar="ε∞", help="For rappor: all reports for ever. \\[default: ε]",
                 show_default=False),
]  # fmt: skip


@app.command()
def privatize(
    data: Annotated[
        Path, typer.Argument(metavar="DATA.CSV", help="The answers, under a line of column names; - is stdin.")
    ],
    column: Annotated[str, typer.Option("--column", "-c", metavar="C", help="Whose answers.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="reports .csv or .jsonl", show_default=False)
    ],
    epsilon: EpsilonOption = None,
    protocol: ProtocolOption = "auto",
    domain: DomainOption = None,
    values: ValuesOption = None,
    bins: BinsOption = None,
    bounds: RangeOption = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="REPORTS", help="Everything as in another file of reports.", show_default=False),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option("--missing", metavar="ANSWER", help="What an empty cell answers.", show_default=False),
    ] = None,
    clip: Annotated[bool, typer.Option("--clip", help="Numbers beyond the bounds count as the bound.")] = False,
    seed: SeedOption = None,
    permanent: PermanentOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Randomise the answers in one column, one report a person.

    Example: quietsum local privatize survey.csv -c smokes --epsilon 1
    --domain never,sometimes,daily -o reports.csv

    What may be answered is public and stated here; it is never read off the
    answers. Reports are in the order of the rows: who knows that order knows
    whose report is whose, and learns no more than ε allows.
    """
    from quietsum import __version__
    from quietsum.mechanisms import Header, Unfit, choose, make_protocol, pieces_of, read_reports, reports_file

    domains = {"--domain": domain, "--values": values, "--bins": bins, "--range": bounds}
    choice = None
    if like is not None:
        settings = {**domains, "--epsilon": epsilon, "--seed": seed, "--permanent-epsilon": permanent}
        settings["--protocol"] = None if protocol == "auto" else protocol
        if extra := [name for name, value in settings.items() if value is not None]:
            raise InvalidParameter(extra[0], "", "does not go with --like", "the other file says it")
        with read_reports(like) as reader:
            found, reason = reader.header.protocol, f"{reader.header.protocol.name}, as in {like}"
    else:
        answers = _domain(domains, data)
        cost = _require_epsilon(epsilon)
        reason = ""
        if protocol == "auto":
            if seed is not None or permanent is not None:
                raise InvalidParameter("protocol", "auto", "takes no seed and no permanent ε", "name rappor, say")
            choice = choose(answers, cost, 100_000)
            found = choice.protocol
        else:
            given = {"seed": seed, "permanent_epsilon": permanent}
            found = make_protocol(
                protocol, answers, cost, **{key: value for key, value in given.items() if value is not None}
            )
    header = Header(protocol=found, note=column, version=__version__)
    begun = time.monotonic()
    stop = Interruption()
    try:
        with stop.listen(), reports_file(output, header) as writer, _progress(data, as_json) as seen:
            for first, cells, place in _cells(data, column, pieces_of(found.layout)):
                try:
                    writer.add(found.privatize(_answers(found, cells, first, data, column, missing, clip)))
                except Unfit as error:  # named by its row; the cell itself is not quoted
                    raise _unfit(data, first + error.row, column, error.problem, error.remedy) from None
                seen(place)
            if not writer.count:
                raise InvalidParameter(
                    "data", str(data), "holds no answer", "there must be rows under the column names"
                )
    except KeyboardInterrupt:
        print(f"stopped: {output} was not written", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    if choice is not None:  # for as many people as there were
        known = choose(answers, cost, writer.count)
        reason = (known if known.protocol.name == found.name else choice).reason
    if as_json:
        print_json(
            {"written": str(output), "reports": writer.count, "reason": reason, "event": found.event().to_dict()}
            | found.to_dict()
        )
        return
    took = time.monotonic() - begun
    print(f"wrote {output}: {writer.count:,} reports by {found.name} in {took:.1f} s")
    if reason:
        _say(reason)
    source = "What was read" if _is_pipe(data) else data
    _say(f"Each report costs the person who answered ε = {found.epsilon:g}, against every reader. A second set of "
         f"reports about the same answers costs it again. {source} itself is as private as before.")  # fmt: skip
    print_next(["local", "estimate", *([] if like is None else [str(like)]), str(output)])


@app.command()
def estimate(
    reports: Annotated[list[Path], typer.Argument(metavar="REPORTS…", help="Files of reports of one survey.")],
    confidence: Annotated[float, typer.Option("--confidence", "--level", metavar="P", help="Of the intervals.")] = 0.95,
    project: Annotated[
        bool, typer.Option("--project", help="Move shares onto the simplex: none below 0, in all 1. Biased.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE.svg", help="Draw estimates and intervals; - is stdout.", show_default=False
        ),
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Estimate shares, or a mean, from reports, with intervals.

    Example: quietsum local estimate reports.csv --plot shares.svg

    Estimates are unbiased, so a rare answer may come out below zero.
    Intervals are about the people who answered.
    """
    from quietsum.mechanisms import FrequencyProtocol, read_reports
    from quietsum.validate import open_probability

    open_probability("confidence", confidence, "for instance 0.95")
    if plot not in (None, "-") and not str(plot).endswith(".svg"):
        raise InvalidParameter("plot", plot, "is not named .svg", "the picture is an SVG")
    if plot == "-" and as_json:
        raise InvalidParameter("plot", plot, "and --json both want stdout", "name a file for the picture")
    header = _one_survey(reports)
    found, total, digests = header.protocol, None, dict[str, Path]()
    if project and not isinstance(found, FrequencyProtocol):
        raise InvalidParameter("project", True, f"means nothing to {found.name}", "only shares add up to one")
    quiet = as_json or plot == "-"
    for path in reports:
        with read_reports(path) as reader, _progress(path, quiet) as seen:
            for piece in reader:
                try:
                    tally = found.tally(piece)
                except InvalidParameter as error:
                    problem = f"holds a report that {error.problem}"
                    raise InvalidParameter("reports", str(path), problem, "ask for the file again") from None
                total = tally if total is None else total + tally
                seen(reader.position)
        if reader.count >= _TELLING and (twice := digests.setdefault(reader.digest, path)) is not path:
            raise InvalidParameter("reports", str(path), f"holds the same reports as {twice}", "give each file once")
    if total is None:
        raise InvalidParameter("reports", str(reports[0]), "holds no report", "privatize some answers first")
    result = found.conclude(total, confidence=confidence)
    result = result.on_simplex() if project else result
    if plot is not None:
        from quietsum.charts import save_picture

        save_picture(_picture(result, header), plot)
    if as_json:
        print_json(result.to_dict() | {"note": header.note, "files": [str(path) for path in reports], "plot": plot})
    elif plot != "-":
        _print(result, header)
        if plot is not None:
            print(f"wrote {plot}")
        print_next(
            ["explain", "local", "dp"] if plot else ["local", "estimate", *map(str, reports), "--plot", "estimates.svg"]
        )


@app.command()
def simulate(
    epsilon: EpsilonOption = None,
    protocol: ProtocolOption = "all",
    domain: DomainOption = None,
    values: ValuesOption = None,
    bins: BinsOption = None,
    bounds: RangeOption = None,
    answers: Annotated[
        int | None,
        typer.Option("--answers", metavar="D", help="A list of D answers without names.", show_default=False),
    ] = None,
    users: Annotated[int, typer.Option("--users", "-n", metavar="N", help="How many people answer.")] = 100_000,
    repeat: Annotated[int, typer.Option("--repeat", metavar="R", help="Surveys of each protocol.")] = 10,
    as_json: opt.JsonOption = False,
) -> None:
    """Try protocols on made-up answers: the error by formula and as seen.

    Example: quietsum local simulate --answers 50 --epsilon 1

    No private data is read. The k-th answer is made 1/k times as frequent
    as the first; numbers are spread evenly over their bounds.
    """
    from quietsum.mechanisms import FrequencyProtocol, categories, choose, make_protocol

    domains = {"--domain": domain, "--values": values, "--bins": bins, "--range": bounds, "--answers": answers}
    space = categories(answers) if answers is not None and _only(domains) else _domain(domains, None)
    cost, users, repeat = _require_epsilon(epsilon), whole_number("users", users, 10), whole_number("repeat", repeat, 2)
    if users * repeat > 200_000_000:
        raise InvalidParameter("users", users, f"times {repeat} is more than 200 million answers", "use fewer")
    choice = choose(space, cost, users)
    names = [protocol]
    if protocol == "all":
        names = (_MEANS if not hasattr(space, "labels") else _SHARES).split(", ")
        if hasattr(space, "size") and space.size > 512:
            names.remove("rappor")
    rows = []
    for name in names:
        made = make_protocol(name, space, cost)
        rows.append(_try_out(made, users, repeat, shares=isinstance(made, FrequencyProtocol)))
    if as_json:
        print_json({"epsilon": cost, "users": users, "repeat": repeat, "recommended": choice.protocol.name,
                    "reason": choice.reason, "protocols": rows})  # fmt: skip
        return
    print(f"{repeat} surveys of {users:,} people at ε = {cost:g} a report\n")
    print("protocol     error, formula        seen   covered    bits   ms a survey")
    for row in rows:
        print(f"{row['protocol']:<12} {row['standard_error']:>14.4g} {row['seen']:>11.4g} "
              f"{100 * row['covered']:>7.1f} % {row['bits']:>6,.0f} {row['milliseconds']:>13,.1f}")  # fmt: skip
    print()
    _say(f"The error is the root mean square over all answers; 95 % of the intervals should cover. {choice.reason}")
    given = ["--domain", domain] if domain else ["--bins", bins] if bins else ["--range", bounds] if bounds else []
    print_next(["local", "privatize", "data.csv", "--column", "C", "--epsilon", f"{cost:g}",
                *(given or ["--values", str(values or "answers.txt")]), "-o", "reports.csv"])  # fmt: skip


app.command()(shuffle)
app.command()(amplify)


# --------------------------------------------------------------------------------------------- what may be answered


def _require_epsilon(epsilon: float | None) -> float:
    if epsilon is None:
        raise InvalidParameter("epsilon", None, "is missing", "what one report may cost, for instance --epsilon 1")
    return epsilon


def _only(domains: dict[str, Any]) -> bool:
    given = [name for name, value in domains.items() if value is not None]
    if len(given) > 1:
        raise InvalidParameter(given[1], "", f"does not go with {given[0]}", "state the possible answers once")
    if not given:
        names = ", ".join(list(domains)[:-1]) + f" or {list(domains)[-1]}"
        raise InvalidParameter(
            "domain", None, "is missing: what may be answered must be public, and is never read off the answers",
            f"state it by {names}",
        )  # fmt: skip
    return True


def _domain(domains: dict[str, Any], data: Path | None) -> Categories | Bins | Interval:
    """The domain that the options state."""
    from quietsum.mechanisms import Bins, Categories, Interval

    _only(domains)
    text, path = domains["--domain"], domains["--values"]
    if text is not None and "," not in text and Path(text).is_file():  # one answer is no list, so it names the file
        path, text = Path(text), None
    if text is not None:
        try:
            labels = next(csv.reader([text], strict=True), [])
        except csv.Error:
            raise InvalidParameter("domain", text, "is no list", "separate answers by commas") from None
        return Categories(labels=tuple(label.strip() for label in labels))
    if path is not None:
        if data is not None and data.exists() and path.exists() and os.path.samefile(path, data):
            raise InvalidParameter("values", str(path), "is the private file itself", "name the answers in another")
        from quietsum.files import read_file

        try:
            lines = read_file(path, _LARGEST_LIST).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text in UTF-8, or too large"
            raise InvalidParameter("values", str(path), f"cannot be read ({reason})", "one answer a line") from None
        return Categories(labels=tuple(line.strip() for line in lines if line.strip()))
    if (text := domains["--bins"]) is not None:
        return Bins(edges=_numbers("bins", text))
    low_high = _numbers("range", domains["--range"])
    if len(low_high) != 2:
        raise InvalidParameter("range", domains["--range"], "is not a lower and an upper bound", "--range 0,100")
    return Interval(low=low_high[0], high=low_high[1])


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(name, text, "is no list of numbers", "for instance 0,18,65,120") from None


# ---------------------------------------------------------------------------------------------------- the answers


def _cells(path: Path, column: str, most: int) -> Iterator[tuple[int, list[str], int]]:
    """The column's cells, ``most`` at once: the first row's number (from 1), the cells, how many bytes were read."""
    try:
        raw: IO[bytes] = sys.stdin.buffer if _is_pipe(path) else path.open("rb")
    except OSError as error:
        raise InvalidParameter("data", str(path), f"cannot be read ({error.strerror})", "check its name") from None
    with raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
        rows, first = csv.reader(_lines(text), strict=True), 1
        try:
            names = [name.strip() for name in next(rows, [])]
            place = _place(path, names, column.strip())
            while piece := list(itertools.islice(rows, most)):
                # an empty line is an empty cell where there is one column, and nobody's answer where there are several
                piece = [row or [""] for row in piece if row or len(names) == 1]
                for offset, row in enumerate(piece):
                    if len(row) != len(names):
                        raise _unfit(path, first + offset, column, f"has not {len(names)} cells", "mend the row")
                if piece:
                    yield first, [row[place].strip() for row in piece], raw.tell() if raw.seekable() else 0
                first += len(piece)
        except UnicodeDecodeError:
            remedy = "save it as UTF-8, which Excel calls CSV UTF-8"
            raise InvalidParameter("data", str(path), "is no CSV in UTF-8: its letters are coded otherwise",
                                   remedy) from None  # fmt: skip
        except csv.Error:
            problem = f"is no CSV in UTF-8 at line {rows.line_num:,}: its quotes do not fit, or it does not end"
            raise InvalidParameter("data", str(path), problem, "mend that line") from None


def _is_pipe(path: Path) -> bool:
    return str(path) == "-"


def _place(path: Path, names: list[str], column: str) -> int:
    """Where the column stands. The first line is quoted only as far as it resembles what was asked for."""
    if names.count(column) == 1:
        return names.index(column)
    problem, remedy = f"has no column {column!r}", "its first line must name the columns"
    if not any(names):
        problem = f"has no column {column!r}: its first line is empty"
    elif column in names:
        problem, remedy = f"holds the column {column!r} twice", "rename one of them"
    elif len(names) == 1 and (sign := next((sign for sign in ";\t|" if sign in names[0]), "")):
        problem += f": its cells are separated by {'tabs' if sign == chr(9) else repr(sign)}"
        remedy = "save it with commas, and numbers with decimal points"
    elif near := difflib.get_close_matches(column, [name for name in names[:1000] if len(name) < 100], 1):
        remedy = f"did you mean {near[0]!r}?"
    raise InvalidParameter("data", str(path), problem, remedy)


def _lines(text: IO[str]) -> Iterator[str]:
    """The lines of a file, none of which may be endless."""
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise csv.Error("a line without an end")
        yield line


def _answers(
    found: LocalProtocol, cells: list[str], first: int, path: Path, column: str, missing: str | None, clip: bool
) -> Any:
    """Cells as the domain wants them."""
    from quietsum.mechanisms import Bins, Categories, Interval

    domain = found.answers
    if missing is not None:
        cells = [cell or missing.strip() for cell in cells]
    if "" in cells and not (isinstance(domain, Categories) and "" in domain.labels):
        row = first + cells.index("")
        raise _unfit(path, row, column, "is empty", "--missing says what an empty cell answers")
    if isinstance(domain, Categories):
        if clip:
            raise InvalidParameter("clip", True, "means nothing to a list of answers", "it goes with numbers")
        return cells
    numbers = _floats(cells)
    if clip and isinstance(domain, Bins | Interval):
        low, high = (domain.edges[0], domain.edges[-1]) if isinstance(domain, Bins) else (domain.low, domain.high)
        numbers = [min(max(number, low), high) if math.isfinite(number) else number for number in numbers]
    return numbers


def _counts(domain: Categories) -> bool:
    return domain.labels[0] == "0" and domain.labels[-1] == str(domain.size - 1)


def _floats(cells: list[str]) -> list[float]:
    from quietsum.mechanisms import Unfit

    found = []
    for place, cell in enumerate(cells):
        try:
            found.append(float(cell))
        except ValueError:
            raise Unfit(place, "is not a number", "write it like 42 or 3.5; --domain takes texts") from None
    return found


def _unfit(path: Path, row: int, column: str, problem: str, remedy: str) -> InvalidParameter:
    return InvalidParameter("data", str(path), f"row {row:,}, column {column!r}: {problem}", remedy)


@contextlib.contextmanager
def _progress(path: Path, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, by the bytes that were read."""
    if quiet or not sys.stderr.isatty() or not path.is_file():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, width=80), transient=True) as bar:
        task = bar.add_task(printable(path.name), total=path.stat().st_size)
        yield lambda done: bar.update(task, completed=done)


# --------------------------------------------------------------------------------------------------- the estimates


def _one_survey(paths: list[Path]) -> Header:
    """The header that all files share; files of different surveys are refused before any report is read."""
    from quietsum.mechanisms import read_reports

    first: Header | None = None
    seen = set()
    for path in paths:
        with read_reports(path) as reader:
            place = path.stat()
            if (place.st_dev, place.st_ino) in seen:
                raise InvalidParameter("reports", str(path), "is named twice", "give each file once")
            seen.add((place.st_dev, place.st_ino))
            if first is None:
                first = reader.header
            elif other := first.differs(reader.header):
                raise InvalidParameter(
                    "reports", str(path), f"is of another survey than {paths[0]}: {other}",
                    "estimate each survey by itself; privatize --like makes reports that go together",
                )  # fmt: skip
    if first is None:
        raise InvalidParameter("reports", None, "are missing", "name a file of reports")
    return first


def _print(found: Estimate, header: Header) -> None:
    from quietsum.charts import decimals

    what = "mean" if found.labels == ("mean",) else "shares"
    print(f"{what} of {printable(header.note) or 'the answers'}: {found.users:,} reports by {found.protocol}, "
          f"ε = {found.epsilon:g} each\n")  # fmt: skip
    order = sorted(range(len(found.labels)), key=lambda place: -found.values[place])
    if len(order) <= _SHOWN:
        order = list(range(len(order)))
    width = min(30, max(12, *(len(printable(found.labels[place])) for place in order[:_SHOWN])))
    level = f"{100 * found.confidence:g} % interval"
    shown = decimals(found.standard_errors)
    print(f"{'':{width}}  {'estimate':>10}  {'± error':>10}  {level:>24}")
    for place in order[:_SHOWN]:
        label = printable(found.labels[place])
        bounds = f"{found.low[place]:.{shown}f} to {found.high[place]:.{shown}f}"
        print(f"{label[:width]:{width}}  {found.values[place]:>10.{shown}f}  "
              f"{found.standard_errors[place]:>10.{shown}f}  {bounds:>24}")  # fmt: skip
    if len(order) > _SHOWN:
        print(f"… and {len(order) - _SHOWN:,} more; --json lists them all")
    print()
    if found.projected:
        _say("Values were moved onto the simplex afterwards (biased, costs no privacy); errors and intervals are those "
             "of the unbiased estimates.")  # fmt: skip
    hidden = sum(bool(value < 2 * error) for value, error in zip(found.values, found.standard_errors, strict=True))
    if hidden and what == "shares":
        _say(f"{hidden} of {len(found.labels)} shares are less than two standard errors above zero: the noise hides "
             "them. More people, a larger ε or fewer answers would show them.")  # fmt: skip
    _say("Intervals are about the people who answered.")


def _picture(found: Estimate, header: Header) -> str:
    from quietsum.charts import decimals, interval_svg

    order = sorted(range(len(found.labels)), key=lambda place: -found.values[place])[:_DRAWN]
    if len(found.labels) <= _DRAWN:
        order = sorted(order)
    rows = [
        (printable(found.labels[place]), float(found.values[place]), float(found.low[place]), float(found.high[place]))
        for place in order
    ]
    note = f"{found.users:,} reports by {found.protocol}, ε = {found.epsilon:g} each"
    note += f"; {100 * found.confidence:g} % intervals"
    if found.projected:
        note += "; values moved onto the simplex"
    mean = found.labels == ("mean",)
    x_label = "mean" if mean else "share of the people"
    shown = decimals(found.standard_errors)
    return interval_svg(printable(header.note) or "answers", x_label, rows, note=note, shown=shown)


def _try_out(made: Any, users: int, repeat: int, *, shares: bool) -> dict[str, Any]:
    """Some surveys on made-up answers: the error by formula, as seen, and how often intervals covered."""
    import numpy as np

    if shares:
        weights = 1 / np.arange(1, made.domain.size + 1)
        counts = np.floor(weights / weights.sum() * users).astype(int)
        counts[0] += users - counts.sum()
        places, truth = np.repeat(np.arange(made.domain.size), counts), counts / users
        edges = getattr(made.domain, "edges", None)
        answers: Any = np.array(made.domain.labels)[places] if edges is None else np.array(edges)[places]
        if edges is None and _counts(made.domain):
            answers = places
        variance = float(made.variances(users, truth).mean())
    else:
        answers = np.linspace(made.domain.low, made.domain.high, users)
        truth = np.array([answers.mean()])
        variance = float(np.mean([made.variance(users, value) for value in answers[:: max(1, users // 500)]]))
    squares, covered, begun = [], [], time.process_time()
    for _ in range(repeat):
        found = made.estimate(made.privatize(answers))
        squares.append(np.square(found.values - truth).mean())
        covered.append(((found.low <= truth) & (truth <= found.high)).mean())
    return {
        "protocol": made.name, "standard_error": math.sqrt(variance), "seen": math.sqrt(float(np.mean(squares))),
        "covered": float(np.mean(covered)), "bits": made.bits,
        "milliseconds": 1000 * (time.process_time() - begun) / repeat,
    }  # fmt: skip


def _say(words: str) -> None:
    print(textwrap.fill(words, text_width(), break_on_hyphens=False, break_long_words=False))
