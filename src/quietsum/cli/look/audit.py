"""``quietsum audit``: is a finished run what it claims to be?"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import figure, print_json, print_next, text_width
from quietsum.validate import choice, optional

if TYPE_CHECKING:
    from quietsum.audit import CanaryAudit, ClientAudit, MembershipAudit
    from quietsum.runs import Workspace

__all__ = ["audit"]

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", show_default=False,
        help="A run or training that carried canaries, latest for the newest; with --attack any training, or a "
        "federation's run.",
    ),
]  # fmt: skip
AttackOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="membership: a loss threshold on the training's model. clients: canary clients that the run "
        "carried, or through the aggregation of its plan. If omitted, the canaries that the run carried.",
    ),
]
SiteOption = Annotated[
    Path | None,
    typer.Option(
        "--site", metavar="POLICY", show_default=False,
        help="The policy.toml of this site: audit its own part of a run of a coordinator elsewhere.",
    ),
]  # fmt: skip
CONTRADICTED = 5


def audit(
    run: RunArgument,
    attack: AttackOption = None,
    site: SiteOption = None,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Hold a run against its claim by its canaries; exit code 5 if it differs.

    Example: quietsum audit digits-1

    Canaries are made-up records, or clients, that went through the run's own
    draw, clip and noise: train with --audit 500, or state training.canaries or
    privacy.client.canaries in a plan. A correct run is accused at most once in
    a million; the result goes into audit.json or client-audit.json and the
    report. With --site a site audits its own part of a run, by its own ledger,
    and keeps the result.
    """
    from quietsum.audit import CLIENT_AUDIT, Conclusion, audit_run, audit_run_clients, folder_of
    from quietsum.runs import Workspace

    if site is not None:
        return _audit_site(run, site, as_json, alone=attack is None and workspace is None)
    place = Workspace.at(workspace)
    if run == "latest":
        from quietsum.report import find_run

        run = find_run(run, place).run
    if optional(choice, "attack", attack, ("membership", "clients"), "write --attack membership or --attack clients"):
        return _attack(run, place, as_json, membership=attack == "membership")
    records, clients = _carried(run, place)
    found = audit_run(run, place) if records or not clients else None
    whole = audit_run_clients(run, place) if clients else None
    if as_json:
        beside = {} if found is None or whole is None else {"clients": whole.to_dict()}
        first = found if found is not None else whole
        print_json({"run": run, **({} if first is None else first.to_dict()), **beside})
    else:
        if found is not None:
            print(textwrap.fill(found.sentence, text_width()), end="\n\n")
            _show(found, "record")
            print(f"wrote {folder_of(run, place) / 'audit.json'}")
        if whole is not None:
            print(end="" if found is None else "\n")
            _show_clients(whole, carried=True)
            print(f"wrote {folder_of(run, place) / CLIENT_AUDIT}")
        print_next(["report", run, *([] if workspace is None else ["--workspace", workspace])])
    seen = [one.conclusion for one in (found, whole) if one is not None]
    return CONTRADICTED if Conclusion.CONTRADICTED in seen else 0


def _carried(run: str, place: Workspace) -> tuple[bool, bool]:
    """Whether a federation's run carried canary records, and canary clients; a training is asked by its audit."""
    if (place.path / "training" / run).is_dir() or not (place.runs / run).is_dir():
        return True, False
    known = place.find(run)
    plan = known.plan()
    client = plan.privacy.client
    return plan.training.canaries > 0 and not known.sites, client is not None and client.canaries > 0


def _audit_site(run: str, site: Path, as_json: bool, *, alone: bool) -> int:
    from quietsum.audit import Conclusion, audit_site
    from quietsum.errors import InvalidParameter
    from quietsum.party import load_policy

    if not alone:
        problem = "goes by the site's own ledger, which holds neither attacks nor a workspace"
        raise InvalidParameter("--site", str(site), problem, "leave --attack and --workspace out")
    found, path = audit_site(run, load_policy(site))
    if as_json:
        print_json({"run": run, **found.to_dict()})
    else:
        print(textwrap.fill(found.sentence, text_width()), end="\n\n")
        _show(found, "record")
        print(f"wrote {path} (mode 0600)")
    return CONTRADICTED if found.conclusion is Conclusion.CONTRADICTED else 0


def _attack(run: str, place: Workspace, as_json: bool, *, membership: bool) -> int:
    from quietsum.audit import Conclusion, audit_clients, audit_membership, audit_run_clients

    if membership:
        found, path = audit_membership(run, place)
        if as_json:
            print_json({"run": run, **found.to_dict()})
        else:
            _show_membership(found)
            print(f"wrote {path} (mode 0600)")
        return CONTRADICTED if found.conclusion is Conclusion.CONTRADICTED else 0
    plan = place.find(run).plan()
    carried = plan.privacy.client is not None and plan.privacy.client.canaries > 0
    clients = audit_run_clients(run, place) if carried else audit_clients(plan)
    if as_json:
        print_json({"run": run, **clients.to_dict()})
    else:
        _show_clients(clients, carried=carried)
    return CONTRADICTED if clients.conclusion is Conclusion.CONTRADICTED else 0


def _show_clients(found: ClientAudit, *, carried: bool) -> None:
    print(textwrap.fill(found.sentence, text_width()), end="\n\n")
    if found.estimate is not None and found.estimate_range is not None:
        low, high = found.estimate_range
        _line("estimate", f"ε ≈ {found.estimate:.3g}, between {low:.3g} and {high:.3g}; no bound to either side")
    _show(found.tests, "client")
    print(
        "\nThe run itself carried these clients, through its own draws, clip and noise." if carried else
        "\nThe plan's aggregation was replayed with made-up clients: no party was asked."
    )  # fmt: skip


def _line(name: str, text: str) -> None:
    print(textwrap.fill(f"{name:<14} {text}", text_width(), subsequent_indent=" " * 15))


def _show_membership(found: MembershipAudit) -> None:
    print(textwrap.fill(found.sentence, text_width()), end="\n\n")
    for one in found.scores:
        low, high = one.auc_interval
        _line(one.attack, f"AUC {one.auc:.3f}, between {low:.3f} and {high:.3f}; a coin has 0.5")
        for point in one.points:
            _line("", point.sentence)
    print("\n" + textwrap.fill(found.stays, text_width()))


def _show(found: CanaryAudit, unit: str) -> None:
    claim = found.claim
    if claim.epsilon is not None:
        _line("claim", f"ε ≤ {figure(claim.epsilon)} per {unit} at δ = {claim.delta:.3g}")
    _line("canaries say", f"ε ≥ {figure(found.lower_bound, up=False)} at that δ, with 95 % confidence")
    print()
    for one in found.evidence:
        _line(one.name, ("CONTRADICTS THE CLAIM: " if one.contradicts else "") + one.found)
    print("\nThis audit finds, in nine runs of ten unless it says otherwise:")
    for power in found.powers:
        print(f"  {power.sentence}" + ("" if power.enough else " (too little to conclude anything)"))
