"""``quietsum check``: what do another system's settings really promise?"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import figure, print_json, print_next, text_width
from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.audit import CheckedClaim, CheckedLine, Remark

__all__ = ["check"]

CONTRADICTED = 5

ClaimArgument = Annotated[
    str | None,
    typer.Argument(metavar="CLAIM", show_default=False, help="Settings and a stated ε: TOML, JSON, plain YAML or CSV."),
]
TrainerOption = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        metavar="MODULE:FN",
        show_default=False,
        help="Your own step, run against the claim on made-up rows.",
    ),
]
FeaturesOption = Annotated[
    int, typer.Option("--features", metavar="N", help="With --trainer: how many numbers are in a made-up row.")
]
SystemsOption = Annotated[bool, typer.Option("--systems", help="List whose settings can be read, and their keys.")]


def check(
    claim: ClaimArgument = None,
    trainer: TrainerOption = None,
    features: FeaturesOption = 10,
    systems: SystemsOption = False,
    as_json: opt.JsonOption = False,
) -> int:
    """Hold a stated ε against the settings it is stated for, of any system.

    Example: quietsum check claim.toml
    Example: quietsum check --systems
    Example: quietsum check claim.toml --trainer my_module:step

    The settings become privacy events, which are priced from both sides
    beside the stated ε; each mistake is named. Exit code 5: it does not hold.
    """
    from quietsum.audit import check_claim, read_claim

    if systems:
        return _list(as_json)
    if trainer is not None:
        from quietsum.cli.look.trainers import check_trainer

        return check_trainer(trainer, claim, as_json, features)
    if claim is None:
        raise InvalidParameter(
            "CLAIM", None, "is missing", "name a file of settings; quietsum check --systems lists them"
        )
    found = check_claim(read_claim(claim))
    code = CONTRADICTED if found.contradicted else 0
    if as_json:
        print_json({"claim": claim, "exit_code": code, **found.to_dict()})
    else:
        show(found)
        _suggest(found)
    return code


def show(found: CheckedClaim) -> None:
    """A claim for people: stated and true, line by line, and what the difference comes from."""
    from quietsum.errors import printable

    print(textwrap.fill(printable(found.file.title or f"settings of {found.file.system}"), text_width()))
    if found.file.source:
        print(textwrap.fill(f"from {printable(found.file.source)}", text_width(), subsequent_indent="  "))
    for line in found.lines:
        print()
        _show_line(line)


def _show_line(checked: CheckedLine) -> None:
    from quietsum.errors import printable

    line = checked.line
    if line.label:
        print(printable(line.label))
    against = "the server" if line.observer == "server" else "recipients of the model"
    rows = [
        ("stated", "no ε" if line.epsilon is None else f"ε = {line.epsilon:.6g} at δ = {line.delta:g}"),
        ("true", f"{_bounds(checked)} at δ = {line.delta:g}"),
        ("of", f"one {line.unit}, {line.neighbours.value} neighbours, against {against}"),
        ("answer", _answer(checked)),
    ]
    for name, text in rows:
        print(textwrap.fill(f"  {name:<8}{text}", text_width(), subsequent_indent=" " * 10))
    for remark in checked.remarks:
        _show_remark(remark)


def _show_remark(remark: Remark) -> None:
    text = f"{remark.kind}, {remark.name}: {remark.text}"
    print(textwrap.fill(text, text_width(), initial_indent="  - ", subsequent_indent="    "))
    if remark.instead:
        print(
            textwrap.fill(f"instead: {remark.instead}", text_width(), initial_indent="    ", subsequent_indent="    ")
        )


def _bounds(checked: CheckedLine) -> str:
    """ε from both sides, as far as it is known."""
    lower, upper = figure(checked.epsilon_lower, up=False), figure(checked.epsilon)
    if checked.line.event is None and checked.line.least is None:
        return "no finite ε"
    if math.isinf(checked.epsilon) and checked.epsilon_lower == 0:
        return "ε is not known"
    if math.isinf(checked.epsilon):
        return f"ε ≥ {lower}, no upper bound is known"
    return (
        f"ε = {upper}" if lower == upper else f"{lower} ≤ ε ≤ {upper}" if checked.epsilon_lower > 0 else f"ε ≤ {upper}"
    )


def _answer(checked: CheckedLine) -> str:
    """The ruling as a sentence."""
    return {
        "holds": "HOLDS: these settings promise at least that much",
        "does not hold": "DOES NOT HOLD: these settings promise less",
        "needs an assumption": "NEEDS AN ASSUMPTION: whether it holds is not decided by these settings",
        "states no ε": "states no ε",
        "promises nothing": "PROMISES NOTHING: no ε is finite for these settings",
    }[str(checked.ruling)]


def _suggest(found: CheckedClaim) -> None:
    names = [remark.name for line in found.lines for remark in line.remarks if remark.kind != "note"]
    if any(name.endswith("-as-poisson") for name in names):
        print_next(["explain", "poisson sampling"])
    elif found.contradicted:
        print_next(["explain", "noise_multiplier"])
    else:
        print_next(["explain", "epsilon"])


def _list(as_json: bool) -> int:
    """Whose settings can be read, with the keys of each."""
    from quietsum.audit import list_systems
    from quietsum.plan import keys_of

    if as_json:
        found: dict[str, Any] = {
            one.name: {"title": one.title, "settings": dict(keys_of(one.settings))} for one in list_systems()
        }
        print_json({"systems": found})
        return 0
    for one in list_systems():
        print(f"{one.name}: {one.title}")
        for name, meaning in keys_of(one.settings).items():
            print(textwrap.fill(f"{name}: {meaning}", text_width(), initial_indent="  ", subsequent_indent="      "))
        print()
    print_next(["check", "claim.toml"])
    return 0
