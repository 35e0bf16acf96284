"""``quietsum party``: a site that takes part, by its own policy and with its own books."""

from __future__ import annotations

import contextlib
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import layer_lines, print_json, print_next, text_width
from quietsum.cli.sites.status import introduce, lifetimes_of, print_budgets, print_draws, print_runs
from quietsum.cli.train.flower import require_flower

if TYPE_CHECKING:
    from quietsum.ledger import Ledger
    from quietsum.party import Policy
    from quietsum.plan import Plan

__all__ = ["app"]

app = typer.Typer(
    name="party",
    help="A site: its policy, its own books, its part in rounds.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PolicyOption = Annotated[Path, typer.Option("--policy", metavar="POLICY.TOML", help="What may be asked of this site.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure-loopback", help="No TLS, for a trial on one machine; refused elsewhere.")
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="RUN.TOML",
        help="Say whether this plan, or questions.toml, would be taken.",
        show_default=False,
    ),
]
_DEFAULT = Path("policy.toml")
_TRAINS = {"warn": "it is trained on all the same", "drop": "rows that do not fit by themselves are left out"}


@app.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="POLICY.TOML", help="The file to write.")] = _DEFAULT,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The site's name in plans.")] = "Basel",
    address: Annotated[
        str, typer.Option("--coordinator", metavar="HOST:PORT", help="Where the coordinator is.")
    ] = "fl.example.org:9092",
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="A task that may run here.")] = "heart",
    dataset: Annotated[str, typer.Option("--dataset", metavar="NAME", help="The dataset's name.")] = "my-dataset",
    size: Annotated[int, typer.Option("--size", metavar="N", help="Its declared size, public.")] = 1000,
) -> None:
    """Write a policy to begin with.

    Example: quietsum party new policy.toml --name Basel --size 303
    """
    from quietsum.errors import InvalidParameter
    from quietsum.files import write_atomically
    from quietsum.party import first_policy, parse_policy

    text = first_policy(path=path, name=name, address=address, dataset=dataset, size=size, task=task)
    parse_policy(text, str(path))
    try:
        write_atomically(path, text.encode(), replace=False, remedy="make room, or choose another place")
    except FileExistsError:
        raise InvalidParameter("path", str(path), "exists", "choose another name; nothing is overwritten") from None
    print(f"wrote {path}; read it line by line, it decides what this site gives away")
    print_next(["party", "check", str(path)])


@app.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="POLICY.TOML", help="The policy.")] = _DEFAULT,
    plan: PlanOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Read a policy, and say what is wrong and whether a plan would be taken.

    Example: quietsum party check policy.toml --plan run.toml

    Keys, certificate, ledger, tasks and rows are looked at; nothing is written.
    """
    from quietsum.cli.sites.check import hints, in_books, in_rows, in_tasks, in_the_way, on_loopback, refusal_of, unfit
    from quietsum.party import layers_of, load_policy

    policy = load_policy(path)
    insecure = on_loopback(policy) and not policy.coordinator.root_certificate
    problems = [str(one) for looks in (in_the_way(policy, insecure=insecure), in_tasks(policy)) for one in looks]
    refused, kept = "", {}
    with _books_to_read(policy) as ledger:
        if ledger is not None:
            kept = lifetimes_of(policy, ledger)
            problems += [str(problem) for problem in in_books(policy, ledger)]
        problems += [str(problem) for problem in in_rows(policy, write=False)]
        looked = [str(problem) for problem in unfit(policy)]
        trains = policy.data is not None and policy.data.on_failure in ("drop", "warn")
        problems += [] if trains else looked
        if plan is not None:
            refused = refusal_of(policy, _plan_in(plan), ledger)
    wrong = list(dict.fromkeys([*problems, *([refused] if refused else [])]))  # the books may have said it before
    if as_json:
        budgets = [
            {"unit": unit.value, "epsilon": budget.epsilon, "delta": budget.delta}
            for unit, budget in {**{unit: one.lifetime(unit) for unit, one in policy.budgets.items()}, **kept}.items()
        ]
        told = {"site": policy.name, "plan": None if plan is None else str(plan), "refused": refused}
        print_json({**told, "problems": problems, "budgets": budgets, "secure": policy.rules.to_dict(),
                    "layers": [layer.to_dict() for layer in layers_of(policy)]})  # fmt: skip
        return 2 if wrong else 0
    introduce(policy, kept)
    print(
        "\n".join(
            [
                "layers of defence that are this site's own:",
                *layer_lines([layer.to_dict() for layer in layers_of(policy)]),
            ]
        )
    )
    for hint in [
        *hints(policy),
        *(f"{problem}; {_TRAINS[str(policy.data and policy.data.on_failure)]}" for problem in looked if trains),
    ]:
        _say(hint, indent="  ")
    for problem in wrong:
        _say(f"error: {problem}", file=sys.stderr)
    if wrong:
        return 2
    if plan is not None:
        print(f"{plan} would be taken")
    print_next(["party", "serve", "--policy", str(path), *(["--insecure-loopback"] if insecure else [])])
    return 0


@contextlib.contextmanager
def _books_to_read(policy: Policy) -> Iterator[Ledger | None]:
    """The site's ledger as it lies there, never written; None where there is none."""
    from quietsum.ledger import Ledger, ledger_exists, require_nothing_left

    place = policy.path(policy.site.ledger)
    if place.is_dir() or not ledger_exists(place):
        require_nothing_left(place)
        yield None
        return
    with Ledger.open(place, read_only=True) as ledger:
        yield ledger


def _say(words: str, *, indent: str = "", file: TextIO | None = None) -> None:
    """As wide as the screen, 80 columns at most; paths and commands are not broken at their hyphens."""
    print(
        textwrap.fill(
            words, text_width(), initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False,
            break_long_words=False,
        ),
        file=file or sys.stdout,
    )  # fmt: skip


def _plan_in(path: Path) -> Plan:
    """The plan of a run.toml, or that of a questions.toml."""
    from quietsum.analytics import load_questions, plan_of
    from quietsum.plan import load_plan, read_toml

    asks = "questions" in read_toml(path, "run.toml", "quietsum new run.toml writes one")
    return plan_of(load_questions(path)) if asks else load_plan(path)


@app.command()
def serve(
    policy: PolicyOption = _DEFAULT,
    insecure: InsecureOption = False,
    verbose: opt.VerboseOption = 0,
) -> None:
    """Take part: answer a coordinator by the policy, until Ctrl-C or SIGTERM.

    Example: quietsum party serve --policy policy.toml

    The site calls out only and opens no port. It runs no code that the
    coordinator sends, and no plan that the policy refuses.
    """
    from quietsum.cli.shared.signals import ENDING, answering

    stop = threading.Event()
    with answering(dict.fromkeys(ENDING, lambda _: stop.set())):
        _serve(policy, insecure, verbose, stop)


def _serve(policy: Path, insecure: bool, verbose: int, stop: threading.Event) -> None:
    from quietsum.cli.shared.logs import watch_log
    from quietsum.cli.sites.check import check_pinned, hold_place, in_rows, in_the_way
    from quietsum.party import load_policy

    watch_log(verbose + 1)  # who asked, and what was refused, is what a site wants to see
    loaded = load_policy(policy)
    require_flower()
    from quietsum.federation import serve_node
    from quietsum.identity import make_signer, read_node_key
    from quietsum.ledger import Ledger, ledger_exists
    from quietsum.party import SiteAlerts, SiteBooks, SiteService, canaries_beside, status_of

    for problem in in_the_way(loaded, insecure=insecure):  # a mistake leaves nothing behind
        raise problem
    coordinator, place = loaded.coordinator, loaded.path(loaded.site.ledger)
    key = loaded.path(coordinator.node_key)
    sign = make_signer(read_node_key(key))
    with hold_place(place, coordinator):
        begun = not ledger_exists(place)
        with Ledger.open(place, create=True) as ledger, contextlib.ExitStack() as stack:
            introduce(loaded, lifetimes_of(loaded, ledger))
            if begun:
                _say(f"a new ledger was begun at {place}")
            for warning in status_of(loaded, ledger)["warnings"]:
                _say(f"warning: {warning}")
            known = SiteBooks(loaded, ledger).coordinators()
            check_pinned(loaded, known)
            for problem in in_rows(loaded, write=True):
                raise problem
            _hold_data(loaded, ledger)
            alerts = stack.enter_context(contextlib.closing(SiteAlerts.of(loaded, ledger)))
            service = SiteService(
                loaded, ledger, node_key=sign, interruptible=False, alerts=alerts, canaries=canaries_beside(place)
            )
            alerts.look()
            _say_who_counts(loaded, known)
            print(f"ledger {ledger.identity.ledger}; waiting for {coordinator.address}", flush=True)
            serve_node(
                service.answer,
                address=coordinator.address,
                root_certificate=None if insecure else loaded.path(coordinator.root_certificate),
                node_key=key,
                insecure=insecure,
                stop=stop,
                limit=loaded.rules.largest_message,
            )
    print("ended; the ledger is closed")
    print_next(["party", "status", "--policy", str(policy)])


def _hold_data(policy: Policy, ledger: Ledger) -> None:
    """Hold the data to its schema for the operator's eyes, before anybody is served.

    Only a site that no run waits for may stay away because of its rows: later, its absence would be a message.
    """
    from quietsum.cli.sites.check import unfit
    from quietsum.party import is_awaited

    for problem in unfit(policy):
        assert policy.data is not None
        refuses, public = policy.data.on_failure == "refuse", bool(policy.dataset.public)
        if refuses and (public or not is_awaited(ledger)):
            raise problem
        follows = "its work fails until it fits" if public else "noise alone leaves until it fits, and is charged"
        follows = _TRAINS.get(policy.data.on_failure, follows)
        if refuses:
            follows += (
                ". A run that this site has enrolled in is not over: staying away now would tell of its rows. "
                "Ctrl-C ends it, by your own decision"
            )
        _say(f"warning: {problem}; {follows}", file=sys.stderr)


def _say_who_counts(policy: Policy, known: tuple[str, ...]) -> None:
    """Where the policy pins no coordinator: that the first one counts, and how to pin it."""
    if policy.coordinator.ledger:
        return
    told = "no coordinator is pinned: the first one that this site enrols with counts"
    print(
        textwrap.fill(
            f'{told}; pin it in the policy with coordinator.ledger = "{known[0] if known else "…"}"', text_width()
        )
    )


@app.command()
def status(policy: PolicyOption = _DEFAULT, as_json: opt.JsonOption = False) -> None:
    """Show what this site has spent, for whom and when.

    Example: quietsum party status --policy policy.toml
    """
    from quietsum.errors import QuietsumError
    from quietsum.ledger import Ledger, ledger_exists, require_nothing_left
    from quietsum.party import load_policy, status_of

    loaded = load_policy(policy)
    place = loaded.path(loaded.site.ledger)
    if not ledger_exists(place):
        require_nothing_left(place)
        raise QuietsumError(
            f"there is no ledger at {place}; quietsum party serve makes one. If there was one, restore it: a new one "
            "has forgotten what was spent"
        )
    with Ledger.open(place, read_only=True) as ledger:
        values, kept = status_of(loaded, ledger), lifetimes_of(loaded, ledger)
    if as_json:
        print_json(values)
        return
    introduce(loaded, kept)
    print_budgets(values)
    print_draws(values)
    print_runs(values)
    for warning in values["warnings"]:
        _say(f"warning: {warning}")
    print_next(["ledger", "verify", "--workspace", str(loaded.path(loaded.site.ledger).parent)])
