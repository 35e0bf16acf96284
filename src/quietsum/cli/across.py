"""``quietsum run --on flower``: the same run, with sites on other machines; and ``quietsum superlink``."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli import options as opt
from quietsum.cli.output import print_next
from quietsum.errors import InvalidParameter, QuietsumError

if TYPE_CHECKING:
    from quietsum.federation.flower.superlink import SuperLink
    from quietsum.federation.remote import RemoteFederation

__all__ = [
    "InsecureOption",
    "KeysOption",
    "ListenOption",
    "SuperLinkOption",
    "WaitOption",
    "called",
    "flower",
    "require_flower",
    "superlink",
]

KeysOption = Annotated[
    Path | None,
    typer.Option("--keys", metavar="DIR", help="With --on flower: quietsum keys made it.", show_default=False),
]
ListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="With --on flower: start a SuperLink here.", show_default=False),
]
SuperLinkOption = Annotated[
    Path | None,
    typer.Option(
        "--superlink", metavar="DIR", help="With --on flower: use the running one of this folder.", show_default=False
    ),
]
PATIENCE = 120.0
WaitOption = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long sites may take to come.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure-loopback", help="No TLS, for a trial on one machine; refused elsewhere.")
]


def require_flower() -> None:
    """Say what to install where Flower is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise QuietsumError(
            "Flower is not installed, which carries messages between machines: pip install 'quietsum[federate]'"
        )


@contextlib.contextmanager
def flower(
    *,
    keys: Path | None,
    listen: str | None,
    folder: Path | None,
    own: Path,
    wait: float,
    insecure: bool,
    quiet: bool = False,
) -> Iterator[RemoteFederation]:
    """The sites of the roster in ``keys``, by a SuperLink of our own (``listen``) or a running one (``folder``)."""
    require_flower()
    from quietsum.federation.flower.coordinator import FlowerTransport
    from quietsum.federation.flower.superlink import read_access
    from quietsum.federation.identities import roster_of
    from quietsum.federation.remote import RemoteFederation

    if keys is None:
        raise QuietsumError("--on flower needs the roster of the sites: say --keys DIR; quietsum keys make makes it")
    if (listen is None) == (folder is None):
        raise QuietsumError(
            "--on flower needs one of two: --listen 0.0.0.0:9092 starts a SuperLink for this run, --superlink DIR uses "
            "one that is running"
        )
    if not wait > 0:
        raise InvalidParameter("wait", wait, "is no time", "say how many seconds the sites may take to come")
    roster = roster_of(keys / "parties.toml")
    with contextlib.ExitStack() as stack:
        if listen is not None:
            link = stack.enter_context(_link(keys, listen, own, insecure))
            if not quiet:
                print(f"SuperLink at {link.address}; waiting for the sites", flush=True)
            access = link.access
        else:
            assert folder is not None
            access = read_access(folder)
        made = RemoteFederation(FlowerTransport(access), roster=roster, patience=wait)
        stack.callback(made.close)
        yield made


def called(*, keys: Path | None, listen: str | None, folder: Path | None, wait: float, insecure: bool) -> list[str]:
    """The words of ``quietsum run`` that ask the same sites in the same way again."""
    words = ["--on", "flower"]
    for name, value in (("--keys", keys), ("--listen", listen), ("--superlink", folder)):
        if value is not None:
            words += [name, str(value)]
    if wait != PATIENCE:
        words += ["--wait", f"{wait:g}"]
    return [*words, "--insecure-loopback"] if insecure else words


def _link(keys: Path, listen: str, folder: Path, insecure: bool) -> SuperLink:
    from quietsum.federation.certificates import check_server, read_certificates
    from quietsum.federation.flower.superlink import SuperLink
    from quietsum.federation.nodekeys import read_roster

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidParameter("listen", listen, "is no address", "127.0.0.1:9092, or 0.0.0.0:9092 for all networks")
    roster = read_roster(keys / "parties.toml")
    certificate, key, authority = (keys / name for name in ("server.crt", "server.key", "ca.crt"))
    if not insecure:
        check_server(read_certificates(authority), read_certificates(certificate))
    link = SuperLink(
        folder,
        host=host.strip("[]"),
        port=int(port),
        certificate=None if insecure else certificate,
        key=None if insecure else key,
        authority=None if insecure else authority,
        insecure=insecure,
    )
    try:
        link.admit(roster)
    except BaseException:
        link.close()
        raise
    return link


def superlink(
    keys: KeysOption = None,
    listen: ListenOption = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where it keeps its state.")] = Path(
        "superlink"
    ),
    insecure: InsecureOption = False,
    verbose: opt.VerboseOption = 0,
) -> None:
    """Keep a SuperLink running, through which sites are reached.

    Example: quietsum superlink --keys keys --listen 0.0.0.0:9092

    Ends with Ctrl-C or SIGTERM. SIGHUP reads the roster again.
    """
    from quietsum.cli.logs import watch_log
    from quietsum.federation.nodekeys import read_roster

    require_flower()
    watch_log(verbose)
    if keys is None or listen is None:
        raise QuietsumError("quietsum superlink needs --keys DIR and --listen HOST:PORT, 0.0.0.0:9092 say")
    stop, again = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: again.set())
    with _link(keys, listen, folder, insecure) as link:
        print(f"SuperLink at {link.address}, process {link.pid}; its folder is {folder}", flush=True)
        print_next(["run", "run.toml", "--on", "flower", "--keys", str(keys), "--superlink", str(folder)])
        while not stop.wait(0.5):
            if not link.running:
                from quietsum.federation.flower.superlink import SuperLinkFailed

                raise SuperLinkFailed(f"the SuperLink has ended by itself; {folder / 'superlink.log'} says why")
            if again.is_set():
                again.clear()
                link.admit(read_roster(keys / "parties.toml"))
                print("the roster was read again", flush=True)
