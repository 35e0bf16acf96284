"""The guarantee card of a training at one site: the clauses of a federation's card that are about one site alone.

A federation's card is made from its plan before the first round. A training has no server, no other parties and no
masks; what remains is what recipients learn, whether the result is right, and what no training promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quietsum.plan import Clause, GuaranteeCard
from quietsum.report.figures import show_bound, small

__all__ = ["card_of_training"]

_RECIPIENTS, _RESULT, _NEVER = (
    "What recipients of the model learn", "Whether the result is right", "What holds in no setting"
)  # fmt: skip
_ADDED = "the site's trainer draws, clips and adds the noise as planned; the self-check and an audit test that"


def card_of_training(
    block: Mapping[str, Any], settings: Mapping[str, Any], *, summary: str, plan: str, audited: bool
) -> GuaranteeCard:
    """The card from the block ``privacy`` of the report and the frozen settings."""
    units = {unit["unit"]: unit for unit in block["units"]}
    exact = settings.get("noise") != "fast"
    return GuaranteeCard(plan=plan, summary=summary, clauses=(
        *(_unit(name, title, units.get(name), missing) for name, title, missing in (
            ("record", "What one record adds is hidden from recipients of the model",
             "Nothing is promised per record."),
            ("person", "What one person adds is hidden from recipients of the model",
             "No bound is stated for somebody with several records; max_records would state one."),
        )),
        Clause(
            name="releases", section=_RECIPIENTS, title="The released model itself is bounded in what it tells",
            provided="record" in units,
            text="The weights after every step are covered by the ε above, composed over the whole plan."
            if "record" in units else "Nothing bounds what its weights tell.",
        ),
        Clause(
            name="floating-point", section=_RESULT, title="The noise is safe in floating point", provided=exact,
            text="Noise is drawn as whole numbers on a grid, by the operating system's random bits." if exact else
            "Noise is made of floats, and its last bits may reveal more than the guarantee says.",
        ),
        Clause(
            name="audit", section=_RESULT, title="The finished run can be tested against its claim", provided=audited,
            text="It carries canaries, whose record stays with the holder of the data." if audited else
            "It carries no canaries, and they cannot be added afterwards.",
        ),
        Clause(
            name="poison", section=_RESULT, title="Poisoned data and backdoors are kept out", provided=False,
            text="Clip and noise bound what one record moves; they do not stop many bad ones.",
        ),
        Clause(
            name="protocol", section=_NEVER, title="Protection beyond the training", provided=False,
            text="Not covered: timing and memory of the process, a site that was broken into, what its own people see.",
        ),
    ))  # fmt: skip


def _unit(name: str, title: str, unit: Mapping[str, Any] | None, missing: str) -> Clause:
    if unit is None or unit["epsilon"] == "Infinity":
        return Clause(
            name=f"{name}-recipients", section=_RECIPIENTS, title=title, provided=False, text=missing
        )  # fmt: skip
    return Clause(
        name=f"{name}-recipients", section=_RECIPIENTS, title=title, provided=True, assuming=(_ADDED,),
        text=f"ε ≤ {show_bound(unit['epsilon'])} per {unit['whom']} at δ = {small(unit['delta'])} ({unit['method']}).",
    )  # fmt: skip
