"""Five layers of defence, one list: which of them a plan switches on, by which key, and which lie with the sites.

A list of what is off is worth as much as one of what is on, so every plan has all five. It is made from the plan and
from where the run takes place, never from what happened in it: who was rejected or alarmed about is the operator's.
docs/explanation/threat-model.md says for each layer which test shows it and what remains.

>>> from quietsum.plan import PartyFacts, Plan, PrivacyPlan, RecordPlan, resolve
>>> sites = [PartyFacts(name=name, dataset=name, size=500) for name in ("north", "south")]
>>> plan = Plan(privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=2.0, delta=1e-5)))
>>> [(layer.name, layer.state) for layer in layers(resolve(plan, sites, 10))][:4]
[('input validation', 'off'), ('local privacy', 'on'), ('secure communication', 'off'), ('server defence', 'off')]
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, final

from quietsum.plan.resolution.sight import sight

if TYPE_CHECKING:
    from quietsum.plan.resolution.resolved import ResolvedPlan

__all__ = ["AT_SITES", "LAYERS", "OFF", "ON", "Layer", "layers"]

ON, OFF, AT_SITES = "on", "off", "at each site"
"""How a layer stands: on, off, or left to each site."""
LAYERS = ("input validation", "local privacy", "secure communication", "server defence", "monitoring")
"""The layers of defence, in the order in which an update meets them."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: its ``state``, what that means here, and the ``setting`` that switches it on."""

    name: str
    state: str
    text: str
    setting: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def layers(resolved: ResolvedPlan, *, sites: bool = False) -> tuple[Layer, ...]:
    """The five layers under this plan; ``sites`` says that parties are other machines with policies of their own."""
    return (_input(sites), _privacy(resolved), _communication(resolved, sites), _defence(resolved), _monitoring(sites))


def _input(sites: bool) -> Layer:
    setting = '[data] schema = "data.toml" in policy.toml'
    if sites:
        text = "each site holds its rows to its own schema, where it has one; what it finds stays there"
        return Layer(name=LAYERS[0], state=AT_SITES, text=text, setting=setting)
    text = "no schema holds the rows of a run on one machine; `quietsum data check` looks at a table"
    return Layer(name=LAYERS[0], state=OFF, text=text, setting=setting)


def _privacy(resolved: ResolvedPlan) -> Layer:
    setting = 'privacy.style = "sample" (or "user", "hybrid" with noise_at = "party" or "distributed")'
    told = []
    if resolved.record_noise is not None:
        told.append("records")
    if resolved.client_noise is not None and not resolved.central_noise:
        told.append("whole clients")
    if told:
        shares = ", in shares that only a sum completes" if resolved.distributed_unit is not None else ""
        text = f"the noise that protects {' and '.join(told)} is added before anything leaves a party{shares}"
        return Layer(name=LAYERS[1], state=ON, text=text, setting=setting)
    text = "updates leave the parties without noise"
    if resolved.central_noise:
        text += "; the server adds it, and is trusted to"
    return Layer(name=LAYERS[1], state=OFF, text=text, setting=setting)


def _communication(resolved: ResolvedPlan, sites: bool) -> Layer:
    lines = "TLS and signed identities between the machines" if sites else "nothing leaves this machine"
    if resolved.secure is not None and not resolved.secure.simulated:
        text = f"the server sees masked sums alone; {lines}"
        return Layer(name=LAYERS[2], state=ON, text=text, setting="aggregation.secure = true")
    if resolved.secure is not None:
        text = f"the masks that aggregation.secure asks for are simulated: one holder has all parties and keys; {lines}"
        return Layer(
            name=LAYERS[2], state=OFF, text=text, setting="aggregation.secure, with sites of their own as parties"
        )
    setting = "aggregation.secure = true"
    if resolved.robust is not None:
        setting += f" with aggregation.groups, between which {resolved.robust.name} stands"
    return Layer(name=LAYERS[2], state=OFF, text=f"the server sees single updates; {lines}", setting=setting)


def _defence(resolved: ResolvedPlan) -> Layer:
    setting = 'aggregation.rule = "signguard" (or another than "mean")'
    rule = resolved.robust
    if rule is None:
        cut = (
            "masked sums show no length" if resolved.secure is not None
            else "no update of impossible length counts" if resolved.protected else "no length is too long"
        )  # fmt: skip
        return Layer(name=LAYERS[3], state=OFF, text=f"a mean believes every update; {cut}", setting=setting)
    seen = sight(resolved)
    hidden = "; noise hides signs and directions from it, and leaves it lengths" if seen and seen.faint else ""
    if resolved.secure is not None and resolved.secure.grouping is not None:
        groups = resolved.secure.grouping
        text = f"{rule.facts.title} between the means of {groups.count} random groups, made for {groups.attackers} "
        return Layer(name=LAYERS[3], state=ON, text=f"{text}parties that may send anything{hidden}", setting=setting)
    text = f"{rule.facts.title}, made for {resolved.attackers} updates a round that may be anything{hidden}"
    return Layer(name=LAYERS[3], state=ON, text=text, setting=setting)


def _monitoring(sites: bool) -> Layer:
    also = "; each site has alerts of its own" if sites else ""
    text = f"rounds are held against the rules for alerts, which go to the terminal and to alerts.log{also}"
    return Layer(name=LAYERS[4], state=ON, text=text, setting="alerts.toml (e-mail, webhook, thresholds)")
