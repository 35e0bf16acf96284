"""``quietsum run --on flower``: the same run, with sites on other machines; and ``quietsum superlink``."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.logs import watch_log
from quietsum.cli.shared.output import print_next, print_warning, text_width
from quietsum.cli.shared.signals import ENDING, answering
from quietsum.errors import InvalidParameter, QuietsumError

if TYPE_CHECKING:
    from quietsum.federation import RemoteFederation, SuperLink

__all__ = [
    "InsecureOption",
    "KeysOption",
    "ListenOption",
    "Runtime",
    "SuperLinkOption",
    "WaitOption",
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
OwnKeysOption = Annotated[
    Path | None,
    typer.Option("--keys", metavar="DIR", help="The folder that quietsum keys made.", show_default=False),
]
OwnListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Where sites dial; 0.0.0.0: every network.", show_default=False),
]


def require_flower() -> None:
    """Say what to install where Flower is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise QuietsumError(
            "Flower is not installed, which carries messages between machines: pip install 'quietsum[federate]'"
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where the parties of a command are: on this machine, or at sites that a SuperLink reaches."""

    on: str
    keys: Path | None = None
    listen: str | None = None
    folder: Path | None = None
    wait: float = PATIENCE
    insecure: bool = False

    @property
    def remote(self) -> bool:
        """Whether sites elsewhere are asked."""
        return self.on == "flower"

    @property
    def words(self) -> list[str]:
        """The options that ask the same sites in the same way again; none for this machine."""
        if not self.remote:
            return []
        words = ["--on", "flower"]
        for name, value in (("--keys", self.keys), ("--listen", self.listen), ("--superlink", self.folder)):
            if value is not None:
                words += [name, str(value)]
        if self.wait != PATIENCE:
            words += ["--wait", f"{self.wait:g}"]
        return [*words, "--insecure-loopback"] if self.insecure else words

    def check(self) -> None:
        """Raise InvalidParameter if the options do not fit each other."""
        if self.on not in ("local", "flower"):
            raise InvalidParameter("on", self.on, "is not a runtime of this version", "use --on local or --on flower")
        if not self.remote and (self.keys or self.listen or self.folder or self.insecure):
            remedy = "say --on flower, or leave --keys and --listen out"
            raise InvalidParameter("on", self.on, "asks no site elsewhere", remedy)

    @contextlib.contextmanager
    def open(self, own: Path, *, quiet: bool) -> Iterator[RemoteFederation | None]:
        """The sites, by a SuperLink that keeps its state in ``own`` if one is started; None for this machine."""
        if not self.remote:
            yield None
            return
        with flower(
            keys=self.keys, listen=self.listen, folder=self.folder, own=own, wait=self.wait, insecure=self.insecure,
            quiet=quiet,
        ) as sites:  # fmt: skip
            yield sites


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
    from quietsum.federation import FlowerTransport, RemoteFederation, read_access
    from quietsum.identity import read_verifiers

    if keys is None:
        raise QuietsumError("--on flower needs the roster of the sites: say --keys DIR; quietsum keys make makes it")
    if (listen is None) == (folder is None):
        raise QuietsumError(
            "--on flower needs one of two: --listen 0.0.0.0:9092 starts a SuperLink for this run, --superlink DIR uses "
            "one that is running"
        )
    if not wait > 0:
        raise InvalidParameter("wait", wait, "is no time", "say how many seconds the sites may take to come")
    roster = read_verifiers(keys / "parties.toml")
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


def _place(listen: str, insecure: bool) -> tuple[str, int]:
    """Host and port to listen on; without TLS on this machine only."""
    from quietsum.federation import is_loopback

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidParameter("listen", listen, "is no address", "127.0.0.1:9092, or 0.0.0.0:9092 for all networks")
    host = host.strip("[]")
    if insecure and not is_loopback(host):
        problem = "is not this machine alone, and --insecure-loopback would send models and updates in the clear"
        raise InvalidParameter("listen", listen, problem, "listen on 127.0.0.1, or leave the flag out and use TLS")
    return host, int(port)


def _link(
    keys: Path, listen: str, folder: Path, insecure: bool, *, give_up: threading.Event | None = None
) -> SuperLink:
    from quietsum.federation import SuperLink
    from quietsum.identity import CLIENTS, check_serving, read_parties

    host, port = _place(listen, insecure)
    roster = read_parties(keys / "parties.toml")
    certificate, key, authority = (keys / name for name in ("server.crt", "server.key", "ca.crt"))
    if not insecure:
        for warning in check_serving(keys, host=host):
            print_warning(warning)
    link = SuperLink(
        folder,
        host=host,
        port=port,
        certificate=None if insecure else certificate,
        key=None if insecure else key,
        authority=None if insecure else authority,
        insecure=insecure,
        clients=keys / CLIENTS if not insecure and (keys / CLIENTS).is_file() else None,
        give_up=give_up,
    )
    try:
        link.admit(roster)
    except BaseException:
        link.close()
        raise
    return link


@final
class _Asked:
    """What signals have asked of this process: to end (SIGINT, SIGTERM), to read the roster again (SIGHUP)."""

    def __init__(self) -> None:
        self.end, self.again = threading.Event(), threading.Event()

    def listen(self) -> contextlib.AbstractContextManager[None]:
        """Signals are taken until this ends."""
        ending = dict.fromkeys(ENDING, lambda _: self.end.set())
        return answering({**ending, signal.SIGHUP: lambda _: self.again.set()})


def superlink(
    keys: OwnKeysOption = None,
    listen: OwnListenOption = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where it keeps its state.")] = Path(
        "superlink"
    ),
    insecure: InsecureOption = False,
    verbose: opt.VerboseOption = 0,
) -> None:
    """Keep a SuperLink running, through which sites are reached.

    Example: quietsum superlink --keys keys --listen 0.0.0.0:9092

    Ends with Ctrl-C or SIGTERM. SIGHUP reads the roster again; one that cannot
    be read changes nothing.
    """
    require_flower()
    watch_log(verbose)
    if listen is not None:
        _place(listen, insecure)  # the reason that counts most comes first
    if keys is None or listen is None:
        given = {"--keys DIR": keys, "--listen HOST:PORT": listen}
        missing = " and ".join(name for name, value in given.items() if value is None)
        raise QuietsumError(f"quietsum superlink needs {missing}; say --keys keys --listen 0.0.0.0:9092, for instance")
    from quietsum.federation import GivenUp

    asked = _Asked()
    with asked.listen():
        try:
            with _link(keys, listen, folder, insecure, give_up=asked.end) as link:
                if not asked.end.is_set():
                    _say_where(link, keys, folder, insecure)
                _serve(link, asked, keys / "parties.toml", folder)
        except GivenUp:
            pass
        print(
            textwrap.fill(f"ended; sites wait, and find it again when it is started on {folder}", text_width()),
            flush=True,
        )


def _say_where(link: SuperLink, keys: Path, folder: Path, insecure: bool) -> None:
    print(f"SuperLink at {link.address}, process {link.pid}; its folder is {folder}", flush=True)
    again = Runtime(on="flower", keys=keys, folder=folder, insecure=insecure).words
    print_next(["run", "run.toml", *again])
    sys.stdout.flush()


def _serve(link: SuperLink, asked: _Asked, roster: Path, folder: Path) -> None:
    """Until somebody asks for the end.

    Guarantees: a roster that cannot be read, or was not taken, leaves those let in who were let in before.
    """
    from quietsum.federation import SuperLinkFailed
    from quietsum.identity import read_parties

    while not asked.end.wait(0.5):
        if not link.running:
            raise SuperLinkFailed(f"the SuperLink has ended by itself; {folder / 'superlink.log'} says why")
        if not asked.again.is_set():
            continue
        asked.again.clear()
        try:
            found = read_parties(roster)
            link.admit(found)
        except (QuietsumError, OSError) as problem:
            print_warning(f"the roster was not taken, and the one from before still holds: {problem}")
        else:
            print(f"the roster was read again; sites in it: {len(found)}", flush=True)
