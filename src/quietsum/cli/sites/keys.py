"""``quietsum keys``: who is who, before anything travels between machines.

``make`` is for a trial: one place makes all keys and hands each party a folder. In production every party runs ``node``
and sends one public line, ``admit`` takes it in, and the server's certificate comes from an existing PKI (``pki``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import console, print_json, print_next

if TYPE_CHECKING:
    from quietsum.identity import Keyring, Validity

__all__ = ["app"]

app = typer.Typer(
    name="keys",
    help="Certificates and node keys for sites on other machines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of keys.", show_default=False)]
PartyOption = Annotated[str, typer.Option("--party", metavar="NAME", help="The party's name.", show_default=False)]

UNUSABLE = 2

PKI = """\
With a PKI of your own, quietsum keys make is not needed.

The coordinator needs three files, under these names in one folder:
  ca.crt      the certificates of the authority that sites shall trust (PEM)
  server.crt  the server's certificate, then any intermediate ones (PEM)
  server.key  its private key, without a passphrase, readable by its owner only
The server's certificate must be for server authentication. Its subject
alternative names (SAN) must hold the name or address that sites dial; a common
name alone is not looked at.

A party needs one file of the PKI: ca.crt. Who it is, it shows by a node key:
  at the party        quietsum keys node DIR      and sends DIR/node.pub
  at the coordinator  quietsum keys admit KEYS node.pub --party NAME
Compare the fingerprint by telephone. The private key never travels.

With a fourth file, clients.crt, only callers with a certificate of one of its
authorities are heard at all. A site shows node.crt, which lies beside its
node.key and is for that key and for client authentication; keys make, add and
admit make it where clients.crt and ca.key are in the folder.

To take a party out, delete its table in parties.toml; a running SuperLink reads
the roster again on SIGHUP.
See what a folder holds and what expires: quietsum keys show KEYS
"""


@app.command()
def make(
    folder: FolderArgument,
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server", metavar="HOST",
            help="A name or address that sites dial; localhost is always in.", show_default=False,
        ),
    ] = None,
    party: Annotated[
        list[str] | None,
        typer.Option("--party", metavar="NAME", help="A party; give it once for each.", show_default=False),
    ] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", help="How long the certificates hold.")] = 365,
    as_json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Make an authority, a server certificate and node keys for a trial.

    Example: quietsum keys make keys --server fl.example.org --party Basel
    """
    from quietsum.identity import inspect_keyring, make_keyring

    make_keyring(folder, servers=server or (), parties=party or (), days=days)
    found = inspect_keyring(folder)
    if as_json:
        print_json(_values(folder, found))
        return
    _print(found)
    print("\nHand each party its own folder by a safe way, and nothing else.")
    print("Lock ca.key away: with it, anybody can pass for the server.")
    print_next(["keys", "show", folder])


@app.command()
def add(folder: FolderArgument, party: PartyOption, as_json: opt.JsonOption = False) -> None:
    """Make a node key for one more party."""
    from quietsum.identity import add_party, folder_name

    _print_entered(folder, party, add_party(folder, party), as_json)
    if not as_json:
        print(f"folder  {folder / folder_name(party)}")
        print("\nHand the party its folder by a safe way, and nothing else.")
        print_next(["keys", "show", folder])


@app.command()
def admit(
    folder: FolderArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The party's node.pub.", show_default=False)],
    party: PartyOption,
    as_json: opt.JsonOption = False,
) -> None:
    """Take a public key that a party made itself into the roster."""
    from quietsum.identity import admit_party, folder_name

    _print_entered(folder, party, admit_party(folder, party, file), as_json)
    if not as_json:
        files = "ca.crt and node.crt" if (folder / folder_name(party) / "node.crt").exists() else "ca.crt"
        print(f"\nCompare the fingerprint with the party's by telephone.\nSend it {files}.")
        print_next(["keys", "show", folder])


@app.command()
def node(folder: FolderArgument, as_json: opt.JsonOption = False) -> None:
    """At a site: make its own node key. Only node.pub leaves."""
    from quietsum.identity import make_site_keys

    line = make_site_keys(folder)
    if as_json:
        print_json({"folder": str(folder), "node_key": line, "fingerprint": _fingerprint(line)})
        return
    print(f"key     {folder / 'node.key'} stays here")
    print(f"public  {folder / 'node.pub'} goes to the coordinator")
    print(f"finger  {_fingerprint(line)}")
    print("\nThe coordinator takes it in with:")
    print_next(["keys", "admit", "KEYS", "node.pub", "--party", "NAME"])


@app.command()
def show(folder: FolderArgument, as_json: opt.JsonOption = False) -> int:
    """Show who is in a folder of keys, what expires, and what others can read.

    Exit code 2: a certificate has expired, or files do not fit together.
    """
    from quietsum.identity import inspect_keyring

    found = inspect_keyring(folder)
    code = UNUSABLE if found.expired else 0
    if as_json:
        print_json(_values(folder, found))
        return code
    _print(found)
    print_next(["keys", "add", folder, "--party", "NAME"])
    return code


@app.command()
def pki(as_json: opt.JsonOption = False) -> None:
    """Say how to use a PKI that you already have."""
    if as_json:
        print_json({"text": PKI, "coordinator": ["ca.crt", "server.crt", "server.key"], "party": ["ca.crt"]})
        return
    print(PKI, end="")


def _fingerprint(line: str) -> str:
    from quietsum.identity import fingerprint, read_public_key

    return fingerprint(read_public_key(line, where="the new key"))


def _print_entered(folder: Path, party: str, line: str, as_json: bool) -> None:
    from quietsum.identity import folder_name

    party = folder_name(party)
    values = {"folder": str(folder), "party": party, "node_key": line, "fingerprint": _fingerprint(line)}
    if as_json:
        print_json(values)
    else:
        print(f"party   {party}")
        print(f"finger  {values['fingerprint']}")


def _values(folder: Path, found: Keyring) -> dict[str, Any]:
    def show_validity(validity: Validity | None) -> dict[str, Any] | None:
        if validity is None:
            return None
        until = validity.until.isoformat().replace("+00:00", "Z")
        return {"fingerprint": validity.fingerprint, "until": until, "names": list(validity.names)}

    return {
        "folder": str(folder),
        "authority": show_validity(found.authority),
        "server": show_validity(found.server),
        "parties": [
            {"party": one.party, "fingerprint": one.fingerprint, "private_key_here": one.private_key_here}
            for one in found.parties
        ],
        "warnings": list(found.warnings),
        "expired": found.expired,
    }


def _print(found: Keyring) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()

    def line(name: str, text: str) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=6)
        table.add_column(overflow="fold")
        table.add_row(Text(name), Text(text))
        screen.print(table)

    line("ca", f"until {found.authority.until:%Y-%m-%d}")
    line("", found.authority.fingerprint)
    if found.server is not None:
        line("server", f"until {found.server.until:%Y-%m-%d}, for {', '.join(found.server.names)}")
        line("", found.server.fingerprint)
    print()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("party", "fingerprint of its node key", "key here"):
        table.add_column(name, overflow="fold")
    for one in found.parties:
        table.add_row(Text(one.party), Text(one.fingerprint), "yes" if one.private_key_here else "no")
    if found.parties:
        screen.print(table)
    else:
        print("no party yet")
    for warning in found.warnings:
        line("WARN", warning)
