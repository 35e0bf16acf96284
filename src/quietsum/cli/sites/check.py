"""What keeps a site from serving, found before anybody waits for it: keys, certificate, ledger, tasks, coordinators.

``quietsum party check`` names everything at once and writes nothing; ``quietsum party serve`` asks the same questions
and stops at the first one. So neither passes what the other refuses.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietsum.analytics import TASK
from quietsum.errors import DataMissing, InvalidParameter, LedgerBroken, QuietsumError

if TYPE_CHECKING:
    from quietsum.ledger import Ledger
    from quietsum.party import AllowedTask, CoordinatorAddress, DataCheck, Policy
    from quietsum.plan import Plan
    from quietsum.tasks import Task

__all__ = [
    "check_pinned",
    "hints",
    "hold_place",
    "in_books",
    "in_rows",
    "in_tasks",
    "in_the_way",
    "on_loopback",
    "refusal_of",
    "task_at_site",
    "unfit",
]


def in_the_way(policy: Policy, *, insecure: bool) -> Iterator[QuietsumError]:
    """Each mistake in the keys and in the ledger's place that ends ``party serve`` before it begins."""
    from quietsum.identity import read_node_key

    coordinator = policy.coordinator
    remedy = "make one with quietsum keys node, and have it admitted"
    yield from _lessons(lambda: read_node_key(_file(policy, "node_key", remedy)))
    if insecure and not on_loopback(policy):
        yield InvalidParameter(
            "coordinator.address", coordinator.address, "would get this site's updates in the clear", "use TLS"
        )
    if not insecure:
        authority = "take ca.crt from the coordinator's operator"
        yield from _lessons(lambda: _check_authority(_file(policy, "root_certificate", authority)))
        yield from _lessons(lambda: _check_own_certificate(policy))
    yield from _lessons(lambda: _check_place(policy))
    yield from _lessons(
        lambda: policy.alerts.sinks(policy.folder, service=True)
    )  # passwords are read, nobody is called
    if policy.data is not None:
        yield from _lessons(partial(_data_check, policy))


def _data_check(policy: Policy) -> DataCheck:
    from quietsum.party import DataCheck

    return DataCheck(policy)


def _file(policy: Policy, key: str, remedy: str) -> Path:
    name: str = getattr(policy.coordinator, key)
    if not name:
        raise InvalidParameter(f"coordinator.{key}", "", "is missing", remedy)
    if not (path := policy.path(name)).exists():
        raise InvalidParameter(f"coordinator.{key}", str(path), "is not there", remedy)
    return path


def _check_authority(path: Path) -> None:
    from quietsum.identity import read_certificates

    ends = max(found.not_valid_after_utc for found in read_certificates(path))
    if ends < datetime.datetime.now(datetime.UTC):
        raise InvalidParameter(
            "coordinator.root_certificate", str(path), f"has expired on {ends:%Y-%m-%d}: no coordinator would be "
            "believed", "take ca.crt anew from the coordinator's operator",
        )  # fmt: skip


def _check_own_certificate(policy: Policy) -> None:
    """The certificate beside the node key, which a SuperLink may ask for; there need not be one."""
    from quietsum.identity import check_client, read_certificates, read_node_key

    path = _own_certificate(policy)
    if path is None:
        return
    try:
        key = read_node_key(path.with_name(Path(policy.coordinator.node_key).name)).public_key()
    except QuietsumError:
        return  # has a line of its own
    try:
        check_client(read_certificates(path), key)
    except QuietsumError as problem:
        raise InvalidParameter(
            "coordinator.node_key", str(path), f"is no certificate that could be shown: {problem}",
            "take node.crt anew from the coordinator's operator, or remove it if no certificate is asked for",
        ) from None  # fmt: skip


def _own_certificate(policy: Policy) -> Path | None:
    """``node.crt`` beside ``node.key``; None where it is not there."""
    if not policy.coordinator.node_key:
        return None
    path = policy.path(policy.coordinator.node_key).with_suffix(".crt")
    return path if path.exists() else None


def _check_place(policy: Policy) -> None:
    """A ledger is begun in a folder that is there: behind a mistyped path, a new one has forgotten what was spent."""
    place = policy.path(policy.site.ledger)
    if place.is_dir():
        raise InvalidParameter("site.ledger", str(place), "is a folder", "name the file in it, ledger.db say")
    if not place.parent.is_dir():
        raise InvalidParameter(
            "site.ledger", str(place), "lies in a folder that is not there",
            "mend the path, or make the folder if this site never had a ledger: a new one has forgotten what was spent",
        )  # fmt: skip


def in_tasks(policy: Policy) -> Iterator[QuietsumError]:
    """Each task of the policy that cannot be made here; it is made, and not asked for a record here."""
    for allowed in policy.tasks:
        yield from _lessons(partial(_make, allowed))
    yield from _lessons(partial(_check_header, policy))


def _question_tasks(policy: Policy) -> tuple[AllowedTask, ...]:
    """The policy's questions as a task that counts all records of its table; () where it answers none."""
    from quietsum.party import AllowedTask

    if policy.questions is None:
        return ()
    here = {"tables": {policy.name: str(policy.path(policy.questions.table))}}
    return (AllowedTask(name=TASK, options={"questions": [{"name": "all", "kind": "count"}]}, here=here),)


def _check_header(policy: Policy) -> None:
    """The table that is asked has the columns that the policy declares; of a table that is there, one line is read."""
    from quietsum.tasks import read_header

    if policy.questions is None or not (path := policy.path(policy.questions.table)).is_file():
        return
    header = [word.strip() for word in read_header(path)]
    for column in policy.questions.columns:
        if header.count(column.name) != 1:
            problem = f"is not in the first line of {path} once"
            remedy = f"declare what is there: {', '.join(header)[:200]}"
            raise InvalidParameter("questions.columns", column.name, problem, remedy)


def _odd_table(policy: Policy) -> Iterator[str]:
    """What the site's operator, and he alone, should know of the table that is asked."""
    from quietsum.tasks import oddities

    asked = policy.questions
    if asked is not None and policy.path(asked.table).is_file():
        try:
            yield from oddities(policy.path(asked.table), asked.columns, policy.dataset.size)
        except Exception as error:  # what it says may quote a row
            yield f"{asked.table} cannot be read ({type(error).__name__}), so noise alone would leave"


def _make(allowed: AllowedTask) -> Any:
    from quietsum.tasks import make_named_task

    return make_named_task(allowed.name, {**allowed.options, **allowed.here})


def in_rows(policy: Policy, *, write: bool) -> Iterator[QuietsumError]:
    """Where the site's rows are known here under another name; ``write`` remembers them for the next time.

    The holder asks its own data, before it serves anybody, and keeps the answer to itself. Rows that cannot be read are
    no problem here: the site's log says so when they are trained on.
    """
    from quietsum.ledger import check_rows

    dataset, place = policy.dataset, policy.path(policy.site.ledger)
    if dataset.public or not place.parent.is_dir() or place.is_dir():
        return
    for allowed in (*policy.tasks, *_question_tasks(policy)):
        yield from _lessons(
            partial(
                check_rows, place, {dataset.name: partial(_rows_of, allowed, policy.name)}, reason=dataset.same_rows,
                remedy='say why in the policy: same_rows = "…" under [dataset]', write=write,
            )
        )  # fmt: skip


def _rows_of(allowed: AllowedTask, party: str) -> object:
    from quietsum.party import calmly, look_for_data, read_records

    def read() -> object:
        made = task_at_site(allowed)
        look_for_data(made, party)
        return read_records(made, party)

    try:
        return calmly(read)
    except (Exception, SystemExit):
        return None


def task_at_site(allowed: AllowedTask) -> Task:
    """The task as this site runs it, with its own options."""
    from quietsum.tasks import as_task

    return as_task(_make(allowed))


def unfit(policy: Policy) -> Iterator[QuietsumError]:
    """Where the site's data does not fit the schema that its policy names: for the site's operator alone.

    A schema that cannot be read is a mistake in the policy (:func:`in_the_way`), and no data is looked at then.
    """
    from quietsum.errors import DataUnfit
    from quietsum.party import SHOWS, calmly, failure

    try:
        check = None if policy.data is None else _data_check(policy)
    except QuietsumError:
        return
    if check is None or policy.data is None:
        return
    for allowed in (*policy.tasks, *_question_tasks(policy))[:1] if policy.data.table else policy.tasks:
        try:
            calmly(lambda one=allowed: check.look(task_at_site(one), policy.name).require(SHOWS))  # type: ignore[misc]
        except (DataUnfit, DataMissing) as problem:
            yield DataUnfit(f"task {allowed.name}: {problem}")
        except (Exception, SystemExit) as error:  # what it says may quote a row
            yield DataUnfit(f"task {allowed.name}: its rows cannot be checked ({failure(error)})")


def in_books(policy: Policy, ledger: Ledger) -> Iterator[QuietsumError]:
    """What is wrong between the policy and the ledger, so that nothing would run."""
    from quietsum.party import SiteBooks

    books = SiteBooks(policy, ledger)
    yield from _lessons(books.check_name)
    if not policy.budgets or (policy.name, policy.dataset.name) not in ledger.public_datasets():
        yield from _lessons(books.check_lifetimes)
    yield from _lessons(lambda: check_pinned(policy, books.coordinators()))


def check_pinned(policy: Policy, known: tuple[str, ...]) -> None:
    """Where a ledger knows several coordinators, a policy says which one it is about."""
    if not policy.coordinator.ledger and len(known) > 1:
        raise InvalidParameter(
            "coordinator.ledger", "", f"is missing, and the ledger knows {len(known)} coordinators",
            f"pin the one at {policy.coordinator.address}: {' or '.join(known)}",
        )  # fmt: skip


def _lessons(ask: Callable[[], object]) -> Iterator[QuietsumError]:
    """The lesson of ``ask``, if there is one; a ledger that is broken or out of reach is no line among others."""
    from quietsum.ledger import StoreFailed

    try:
        ask()
    except (LedgerBroken, StoreFailed):
        raise
    except QuietsumError as problem:
        yield problem


def hints(policy: Policy) -> Iterator[str]:
    """What is right and worth knowing before serving."""
    from quietsum.ledger import ledger_exists

    place = policy.path(policy.site.ledger)
    if place.parent.is_dir() and not ledger_exists(place):
        yield f"there is no ledger yet; quietsum party serve begins one at {place}"
    if place.name != "ledger.db":
        yield f"quietsum ledger looks for ledger.db in a folder, and this one is called {place.name}"
    yield from _certificate_hints(policy)
    yield from _missing_data(policy)
    yield from _odd_table(policy)
    rules = policy.rules
    if (rules.secure == "required" or "distributed-noise" in rules.aggregation) and not rules.peers:
        yield (
            "rules.peers names no other site's ledger: a coordinator that makes up this site's peers would read its "
            "updates; pin them, from quietsum ledger show at each"
        )
    if on_loopback(policy) and not policy.coordinator.root_certificate:
        yield "without coordinator.root_certificate, only --insecure-loopback serves it"


def _missing_data(policy: Policy) -> Iterator[str]:
    """Tasks whose files are not here: said to the holder, who may still bring them. No record is read."""
    from quietsum.tasks import optional_part

    for allowed in (*policy.tasks, *_question_tasks(policy)):
        try:
            if (look := optional_part(_make(allowed), "look_for_data")) is not None:
                look(policy.name)
        except DataMissing as missing:
            what = "questions" if allowed.name == TASK else f"task {allowed.name}"
            yield f"{what} would be refused, since it has no data here: {missing}"
        except Exception:
            continue  # a task that cannot be made has a line of its own


def _certificate_hints(policy: Policy) -> Iterator[str]:
    """Whom ``node.crt`` calls its holder, and how long it holds, where either may surprise."""
    from quietsum.identity import SOON, common_name, read_certificates

    path = _own_certificate(policy)
    if path is None:
        return
    try:
        own = read_certificates(path)[0]
    except QuietsumError:
        return  # an error, and told as one
    name, left = common_name(own), own.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if name and name != policy.name:
        yield f"{path.name} calls its holder {name}, and this site is {policy.name}: is it the right one?"
    if datetime.timedelta(0) <= left <= SOON:
        yield f"{path.name} expires on {own.not_valid_after_utc:%Y-%m-%d}; ask for a new one"


def on_loopback(policy: Policy) -> bool:
    """Whether the coordinator is on this very machine."""
    from quietsum.federation import is_loopback

    return is_loopback(policy.coordinator.address.rpartition(":")[0].strip("[]"))


def refusal_of(policy: Policy, plan: Plan, ledger: Ledger | None) -> str:
    """Why the site would refuse ``plan``; empty where it would take it.

    Tried on the site's own ledger, or where there is ``None`` on a copy in memory. Nothing is written.
    """
    from quietsum.ledger import Ledger, MemoryStore, SigningKey, StoreFailed
    from quietsum.party import SiteBooks, make_task, try_task
    from quietsum.plan import resolve

    try:
        task = make_task(policy, plan)
        resolved = resolve(plan, task.parties(), task.dimension)
        policy.check(resolved)
        try_task(lambda: task, resolved, policy.name, unseen=False)  # what it raises is shown to the holder only
        books = ledger or Ledger.begin(MemoryStore(), SigningKey.generate())
        SiteBooks(policy, books).rehearse(resolved)
    except (LedgerBroken, StoreFailed):
        raise
    except QuietsumError as refusal:
        return str(refusal)
    return ""


@contextlib.contextmanager
def hold_place(place: Path, coordinator: CoordinatorAddress) -> Iterator[None]:
    """One process serves a site for one coordinator: two would take each other's messages.

    Guarantees: processes of several coordinators share the ledger at ``place``, and so its lifetime, if each of them
    pins its own; one that pins none takes the first that comes, so it serves by itself.
    """
    import fcntl

    place = place.resolve()
    pinned, address = coordinator.ledger, coordinator.address.lower()
    busy = f"another process serves the site of {place}"
    with contextlib.ExitStack() as held:

        def hold(name: str, how: int, problem: str) -> None:
            path = place.with_name(name)
            try:
                file = held.enter_context(path.open("w"))
            except PermissionError:
                raise QuietsumError(
                    f"{path} belongs to somebody else: was the site served by another user, root say? serve it by one "
                    "user only, and remove that file once none does"
                ) from None
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
            except OSError:
                raise QuietsumError(problem) from None

        remedy = "end it first, or, where it serves another coordinator, pin each one in its own policy"
        name = f"{place.name}.serving"
        hold(name, fcntl.LOCK_SH if pinned else fcntl.LOCK_EX, f"{busy}; {remedy} (coordinator.ledger)")
        for word in (address, pinned) if pinned else ():
            mark = hashlib.sha256(word.encode()).hexdigest()[:12]
            hold(f"{name}-{mark}", fcntl.LOCK_EX, f"{busy} for the coordinator at {coordinator.address}; end it first")
        yield
