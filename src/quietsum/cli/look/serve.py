"""``quietsum serve``: the dashboard of a workspace or a site, in a browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_warning
from quietsum.errors import InvalidParameter, QuietsumError

if TYPE_CHECKING:
    from quietsum.web import PageReader

__all__ = ["serve"]

PlaceArgument = Annotated[
    str | None,
    typer.Argument(metavar="[WORKSPACE]", help="The workspace. \\[default: as everywhere]", show_default=False),
]
HostOption = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; elsewhere than on loopback with a token.")
]
PortOption = Annotated[int, typer.Option("--port", metavar="PORT", help="The port; 0 for any free one.")]
NameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--name", metavar="HOST", help="A name by which browsers reach it; may be repeated.", show_default=False
    ),
]  # fmt: skip
OperatorOption = Annotated[
    bool, typer.Option("--operator", help="With the operator's pages: who took part, who was rejected, alerts.")
]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", metavar="POLICY.TOML", help="Of the site with this policy.", show_default=False),
]  # fmt: skip


def serve(
    place: PlaceArgument = None,
    workspace: opt.WorkspaceOption = None,
    policy: PolicyOption = None,
    operator: OperatorOption = False,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8642,
    name: NameOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show runs, budgets, the ledger and a planner in a browser; Ctrl-C ends it.

    Example: quietsum serve

    Nothing is written, and no key is needed. On loopback every user of this
    machine may look; on any other address, and for the operator's pages, a
    token is needed, which is printed once.
    """
    from quietsum.cli.shared.signals import ENDING, answering

    if place is not None and workspace is not None:
        raise InvalidParameter("workspace", workspace, "is named twice", "name it once")
    for library in ("starlette", "uvicorn", "jinja2"):
        if importlib.util.find_spec(library) is None:
            raise QuietsumError(
                f"{library} is not installed, which the dashboard is made with: pip install 'quietsum[serve]'"
            )
    from quietsum.web import open_dashboard

    reader = _reader(place or workspace, policy)
    dashboard = open_dashboard(reader, host=host, port=port, operator=operator, names=name or ())
    if as_json:
        print_json({"address": dashboard.address, "token": dashboard.token, "operator": operator}, indent=None)
    else:
        print(f"open   {dashboard.link}")
        if dashboard.token:
            print("token  it is in the address and is shown this once; who has it may look")
        if dashboard.token and host not in ("127.0.0.1", "localhost", "::1"):
            print_warning("this is plain HTTP: use it inside a trusted network, or through an encrypted tunnel")
        print("end    Ctrl-C", flush=True)
    with answering(dict.fromkeys(ENDING, lambda _: dashboard.stop())):
        dashboard.run()


def _reader(place: str | None, policy: Path | None) -> PageReader:
    """What is shown: the site of ``policy``, or of the policy.toml that lies in the folder; else the workspace."""
    from quietsum.party import load_policy
    from quietsum.runs import Workspace
    from quietsum.web import PageReader

    if policy is not None and place is not None:
        raise InvalidParameter("policy", str(policy), "names a site, and a workspace is named as well", "name one")
    folder = Workspace.at(place).path
    if policy is None and (folder / "policy.toml").is_file():
        policy = folder / "policy.toml"
    if policy is not None:
        loaded = load_policy(policy)
        return PageReader(Workspace(path=loaded.path(loaded.site.ledger).parent), policy=loaded)
    if not folder.is_dir():
        raise InvalidParameter("workspace", str(folder), "is not there", "name one, or begin with quietsum run")
    return PageReader(Workspace(path=folder))
