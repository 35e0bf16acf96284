"""``quietsum party``: a site that takes part, by its own policy and with its own books."""

from __future__ import annotations

import contextlib
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli import options as opt
from quietsum.cli.across import require_flower
from quietsum.cli.output import console, figure, print_json, print_next
from quietsum.privacy.units import Neighbours, Observer

if TYPE_CHECKING:
    from quietsum.party.policy import Policy

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
    typer.Option("--plan", metavar="RUN.TOML", help="Say whether this plan would be taken.", show_default=False),
]
_DEFAULT = Path("policy.toml")


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
    from quietsum.party.policy_file import first_policy, parse_policy

    text = first_policy(path=path, name=name, address=address, dataset=dataset, size=size, task=task)
    parse_policy(text, str(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
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
    """Read a policy, and say whether a plan would be taken.

    Example: quietsum party check policy.toml --plan run.toml
    """
    from quietsum.errors import LedgerBroken, QuietsumError
    from quietsum.ledger import StoreFailed
    from quietsum.party.policy_file import load_policy

    policy = load_policy(path)
    problem = ""
    if plan is not None:
        from quietsum.party.trial import own_task, tried
        from quietsum.plan import load_plan, resolve

        loaded = load_plan(plan)
        try:
            task = own_task(policy, loaded)
            resolved = resolve(loaded, task.parties(), task.dimension)
            policy.check(resolved)
            tried(lambda: task, resolved, policy.name, unseen=False)  # told to the holder alone
            _fits(policy, resolved)
        except (LedgerBroken, StoreFailed):
            raise
        except QuietsumError as refusal:
            problem = str(refusal)
    if as_json:
        print_json({"site": policy.name, "plan": None if plan is None else str(plan), "refused": problem})
        return 2 if problem else 0
    _introduce(policy)
    if problem:
        print(textwrap.fill(f"error: {problem}", 80), file=sys.stderr)
        return 2
    if plan is not None:
        print(f"{plan} would be taken")
    print_next(["party", "serve", "--policy", str(path)])
    return 0


def _fits(policy: Policy, resolved: Any) -> None:
    """Whether the site's books have room: tried on a copy in memory, nothing is written."""
    from quietsum.ledger import Ledger, MemoryStore
    from quietsum.ledger.keys import SigningKey
    from quietsum.ledger.places import exists
    from quietsum.party.books import SiteBooks

    place = policy.path(policy.site.ledger)
    if not exists(place):
        SiteBooks(policy, Ledger.begin(MemoryStore(), SigningKey.generate())).rehearse(resolved)
        return
    with Ledger.open(place, read_only=True) as ledger:
        SiteBooks(policy, ledger).rehearse(resolved)


@app.command()
def serve(
    policy: PolicyOption = _DEFAULT,
    insecure: InsecureOption = False,
    verbose: opt.VerboseOption = 0,
) -> None:
    """Take part: answer a coordinator by the policy, until Ctrl-C or SIGTERM.

    Example: quietsum party serve --policy policy.toml

    The site calls out only and opens no port. Whatever the coordinator sends,
    no code of it is run here, and no plan that the policy refuses.
    """
    from quietsum.cli.logs import watch_log
    from quietsum.errors import InvalidParameter
    from quietsum.party.policy_file import load_policy

    watch_log(verbose + 1)  # who asked, and what was refused, is what a site wants to see
    loaded = load_policy(policy)
    require_flower()
    from quietsum.federation.certificates import read_certificates
    from quietsum.federation.flower.node import serve_node
    from quietsum.federation.flower.superlink import is_loopback
    from quietsum.federation.identities import signing
    from quietsum.federation.nodekeys import read_node_key
    from quietsum.ledger import Ledger
    from quietsum.party.service import SiteService
    from quietsum.party.status import status_of

    coordinator = loaded.coordinator
    if not coordinator.node_key:
        raise InvalidParameter(
            "coordinator.node_key", "", "is missing", "make one with quietsum keys node, and have it admitted"
        )
    if not coordinator.root_certificate and not insecure:
        raise InvalidParameter(
            "coordinator.root_certificate", "", "is missing", "take ca.crt from whoever runs the coordinator"
        )
    key = loaded.path(coordinator.node_key)
    sign = signing(read_node_key(key))  # up to where the ledger is opened, a mistake leaves nothing behind
    root = None if insecure else loaded.path(coordinator.root_certificate)
    if root is not None:
        read_certificates(root)
    if insecure and not is_loopback(coordinator.address.rpartition(":")[0].strip("[]")):
        raise InvalidParameter(
            "coordinator.address", coordinator.address, "would be told this site's updates in the clear", "use TLS"
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    place = loaded.path(loaded.site.ledger)
    with _alone(place), Ledger.open(place, create=True) as ledger:
        _introduce(loaded)
        for warning in status_of(loaded, ledger)["warnings"]:
            print(textwrap.fill(f"warning: {warning}", 80))
        service = SiteService(loaded, ledger, node_key=sign)
        _say_who_counts(loaded, service.books.coordinators())
        print(f"ledger {ledger.identity.ledger}; waiting for {coordinator.address}", flush=True)
        serve_node(
            service.answer,
            address=coordinator.address,
            root_certificate=root,
            node_key=key,
            insecure=insecure,
            stop=stop,
            limit=loaded.rules.largest_message,
        )
    print("ended; the ledger is closed")
    print_next(["party", "status", "--policy", str(policy)])


def _say_who_counts(policy: Policy, known: tuple[str, ...]) -> None:
    """Where the policy pins no coordinator: that the first one counts, and how to pin it."""
    if policy.coordinator.ledger:
        return
    told = "no coordinator is pinned: the first one that this site enrols with counts"
    print(textwrap.fill(f'{told}; pin it in the policy with coordinator.ledger = "{known[0] if known else "…"}"', 80))


@contextlib.contextmanager
def _alone(ledger: Path) -> Iterator[None]:
    """One process serves a site: two would take each other's messages."""
    import fcntl

    from quietsum.errors import QuietsumError

    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.with_name(ledger.name + ".serving").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise QuietsumError(f"another process serves the site of {ledger}; end it first") from None
        yield


@app.command()
def status(policy: PolicyOption = _DEFAULT, as_json: opt.JsonOption = False) -> None:
    """Show what this site has spent, for whom and when.

    Example: quietsum party status --policy policy.toml
    """
    from quietsum.errors import QuietsumError
    from quietsum.ledger import Ledger
    from quietsum.ledger.places import exists
    from quietsum.party.policy_file import load_policy
    from quietsum.party.status import status_of

    loaded = load_policy(policy)
    place = loaded.path(loaded.site.ledger)
    if not exists(place):
        raise QuietsumError(
            f"there is no ledger at {place}; quietsum party serve makes one. If there was one, restore it: a new one "
            "has forgotten what was spent"
        )
    with Ledger.open(place, read_only=True) as ledger:
        values = status_of(loaded, ledger)
    if as_json:
        print_json(values)
        return
    _introduce(loaded)
    _print_budgets(values)
    _print_runs(values)
    for warning in values["warnings"]:
        print(textwrap.fill(f"warning: {warning}", 80))
    print_next(["ledger", "verify", "--workspace", str(loaded.path(loaded.site.ledger).parent)])


def _introduce(policy: Policy) -> None:
    data = policy.dataset
    print(textwrap.fill(f"{policy.name}: dataset {data.name}, {data.size:,} records (declared)", 80))
    if data.public:
        print(textwrap.fill(f"nobody in it is protected: {data.public}", 80))
    for unit, allowed in policy.budgets.items():
        text = f"  per {unit}: ε ≤ {allowed.epsilon:g} over all runs at δ = {allowed.delta:g}"
        print(f"{text}, ≤ {allowed.of_a_run:g} in one")
        if len(allowed.neighbours) < len(Neighbours):
            print(f"    between {' or '.join(allowed.neighbours)} neighbours")
        if Observer.SERVER not in policy.observers(unit):
            print("    against recipients of the model only: by noisy-sum the server sees updates")
    print(textwrap.fill(f"  tasks: {', '.join(task.name for task in policy.tasks)}", 80, subsequent_indent="    "))
    trusted = "amplified by the server's draw" if policy.rules.trust_server_sampling else "without amplification"
    if "client" in policy.budgets:
        print(f"  the site as a whole is charged {trusted}")


def _print_budgets(values: dict[str, Any]) -> None:
    from rich.table import Table

    if not values["budgets"]:
        return
    table = Table(box=None, pad_edge=False, title="spent over all runs", title_justify="left")
    for name in ("lifetime budget", "spent", "plans"):
        table.add_column(name, justify="right" if name == "plans" else "left")
    for line in values["budgets"]:
        budget = f"ε {line['epsilon']:g} per {line['unit']}, δ {line['delta']:g}"
        table.add_row(budget, _share(line), str(line["plans"]))
    print()
    console().print(table)
    for line in values["budgets"]:
        if told := _bound(line):
            print(textwrap.fill(told, 80))


def _share(line: dict[str, Any]) -> str:
    """What was spent, in the words of ``quietsum ledger show``."""
    from quietsum.party.status import FILTER, NO_GATE, NOTHING, OVERDRAWN

    words = {NOTHING: "nothing", NO_GATE: "no gate", OVERDRAWN: "more than it"}
    filtered = " (filter)" if line["held_by"] == FILTER else ""
    return words.get(line["held_by"]) or f"{_percent(line['spent_fraction'])}{filtered}"


def _percent(share: float) -> str:
    return "under 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"


def _bound(line: dict[str, Any]) -> str:
    """What holds, between which neighbours and against whom; for several runs, that their share is no ε."""
    from quietsum.party.status import FILTER, ONE_RUN, OVERDRAWN

    held, unit = line["held_by"], line["unit"]
    if held == OVERDRAWN:
        return f"the budget per {unit} does not hold: the dataset was used beyond it while it was declared public"
    if held not in (ONE_RUN, FILTER):
        return ""
    scope = f"per {unit} at δ = {line['delta']:g}, between {line['neighbours']} neighbours, {_against(line)}"
    if held == ONE_RUN:
        return f"so far ε ≤ {figure(line['bound_epsilon'])} {scope}"
    return (
        f"all runs together ε ≤ {line['bound_epsilon']:g} {scope}. A filter lets no run exceed that; "
        f"{_percent(line['spent_fraction'])} of it is used, which is a share of the filter and no ε"
    )


def _against(line: dict[str, Any]) -> str:
    trusted = "server" not in line["observers"]
    return "against " + ("recipients of the model only" if trusted else "the server and recipients of the model")


def _print_runs(values: dict[str, Any]) -> None:
    from rich.table import Table

    if not values["runs"]:
        print("\nno run has been enrolled in yet")
        return
    table = Table(box=None, pad_edge=False, title="runs", title_justify="left")
    for name in ("run", "for", "since", "last", "asked", "left"):
        table.add_column(name, justify="right" if name in ("asked", "left") else "left", overflow="fold")
    for line in values["runs"]:
        since, last = (line[name][:16].replace("T", " ") for name in ("enrolled", "last"))
        table.add_row(line["run"], line["coordinator"][:12], since, last, str(line["reserved"]), str(line["committed"]))
    print()
    console().print(table)
    for line in values["runs"]:
        for spent in line["spent"]:
            text = f"{line['run']}: ε = {figure(spent['epsilon'])} per {spent['unit']} at δ = {spent['delta']:g}"
            here = (values["site"], values["dataset"]["name"]) == (line["party"], line["dataset"])
            where = "" if here else f", as {line['party']} with dataset {line['dataset']}"
            against = "" if "server" in spent["observers"] else f", {_against(spent)}"
            print(textwrap.fill(f"{text}{against}{where}", 80))
