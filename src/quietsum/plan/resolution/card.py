"""The guarantee card: who learns what under which assumption, made from the plan and from nothing else.

Every card has the same clauses, for every plan. A clause whose condition the plan does not meet is printed as NOT
PROVIDED, with what is true instead; so what is missing can be read as easily as what is there. A clause about something
that the plan does not use, neither kept nor broken, is NOT APPLICABLE. A clause never says more than the plan's own
numbers and the protocol's statement (docs/explanation/threat-model.md) support.

>>> from quietsum.plan import PartyFacts, Plan, PrivacyPlan, RecordPlan, resolve
>>> sites = [PartyFacts(name=name, dataset=name, size=500) for name in ("north", "south")]
>>> plan = Plan(privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=2.0, delta=1e-5)))
>>> found = card(resolve(plan, sites, 10))
>>> found["one-sum"].provided, found["record-server"].provided
(False, True)
"""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import CorruptState
from quietsum.plan.resolution.sight import FAINT, sight
from quietsum.privacy import Observer, PrivacyUnit

if TYPE_CHECKING:
    from quietsum.plan.resolution.resolved import ResolvedPlan
    from quietsum.privacy import Guarantee

__all__ = ["NOT_APPLICABLE", "NOT_PROVIDED", "Clause", "GuaranteeCard", "card"]

NOT_PROVIDED = "NOT PROVIDED"
NOT_APPLICABLE = "NOT APPLICABLE"
SECTIONS = (
    "What the server learns",
    "What recipients of the model learn",
    "What other parties learn",
    "Whether the result is right",
    "What holds in no setting",
)
_SERVER, _RECIPIENTS, _PARTIES, _RESULT, _NEVER = SECTIONS


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Clause:
    """One statement. ``text`` is what holds: the statement itself, or what is true where it is not ``provided``.

    One that does not apply (``applies`` is False) is not provided either.
    """

    name: str
    section: str
    title: str
    provided: bool
    text: str
    assuming: tuple[str, ...] = ()
    applies: bool = True

    @property
    def mark(self) -> str:
        """How the clause stands, in words.

        >>> Clause(name="a", section="b", title="c", provided=False, text="d", applies=False).mark
        'NOT APPLICABLE'
        """
        return "Provided" if self.provided else NOT_PROVIDED if self.applies else NOT_APPLICABLE

    def to_dict(self) -> dict[str, Any]:
        """Plain values; ``applies`` only where it is False."""
        values = {**dataclasses.asdict(self), "assuming": list(self.assuming)}
        if self.applies:
            del values["applies"]
        return values


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GuaranteeCard:
    """The clauses of one plan, known by its digest."""

    plan: str
    summary: str
    clauses: tuple[Clause, ...]

    def __getitem__(self, name: str) -> Clause:
        return next(clause for clause in self.clauses if clause.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file beside the text."""
        clauses = [clause.to_dict() for clause in self.clauses]
        return {"format": 1, "plan": self.plan, "summary": self.summary, "clauses": clauses}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GuaranteeCard:
        """What :meth:`to_dict` gave; :class:`~quietsum.errors.CorruptState` where it is no card."""
        try:
            clauses = tuple(Clause(**{**one, "assuming": tuple(one["assuming"])}) for one in values["clauses"])
            return cls(plan=str(values["plan"]), summary=str(values["summary"]), clauses=clauses)
        except (LookupError, TypeError) as error:
            raise CorruptState(f"the guarantee card cannot be read ({error}); make it anew from the plan") from None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Everything that some clause assumes, each once; clauses name them by number."""
        return tuple(dict.fromkeys(one for clause in self.clauses for one in clause.assuming))

    @property
    def _sections(self) -> tuple[str, ...]:
        """Those about which there is a clause."""
        return tuple(section for section in SECTIONS if any(clause.section == section for clause in self.clauses))

    def to_markdown(self) -> str:
        """The card as a page."""
        parts = ["# Guarantee card", self.summary]
        for section in self._sections:
            parts.append(f"## {section}")
            parts += [f"- **{head}** {text}" for head, text in self._say(section)]
        parts.append("## Assumptions")
        parts.append("\n".join(f"{place}. {_sentence(one)}" for place, one in enumerate(self.assumptions, 1)))
        parts.append(f"Made from the plan {self.plan[:16]}… by quietsum; every clause follows from its keys.")
        return "\n\n".join(parts) + "\n"

    def to_text(self, width: int = 80) -> str:
        """The card for a terminal."""
        lines = [*textwrap.wrap(self.summary, width)]
        for section in self._sections:
            lines += ["", section]
            for head, text in self._say(section):
                lines += _wrap(f"{head} {text}", width, "  ")
        lines += ["", "Assumptions"]
        for place, one in enumerate(self.assumptions, 1):
            lines += _wrap(f"{place}. {_sentence(one)}", width, "  ")
        return "\n".join(lines)

    def _say(self, section: str) -> list[tuple[str, str]]:
        """Mark and title of each clause of a section, and its text with the numbers of what it assumes."""
        numbers = {one: place for place, one in enumerate(self.assumptions, 1)}
        found = []
        for clause in (one for one in self.clauses if one.section == section):
            assumed = ", ".join(str(place) for place in sorted(numbers[one] for one in clause.assuming))
            found.append(
                (f"{clause.mark}: {clause.title}.", clause.text + (f" [assuming {assumed}]" if assumed else ""))
            )
        return found


_FIGURE = re.compile(r"ε ≤ \S+ per \w+")  # an ε stays on one line with its unit
_JOINED = "\N{NO-BREAK SPACE}"


def _wrap(text: str, width: int, indent: str) -> list[str]:
    whole = _FIGURE.sub(lambda found: found[0].replace(" ", _JOINED), text)
    lines = textwrap.wrap(
        whole, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [line.replace(_JOINED, " ") for line in lines]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def card(resolved: ResolvedPlan) -> GuaranteeCard:
    """The card of a plan; every ε on it is that of the whole plan, spare attempts included."""
    whole = resolved.forecast(()).whole
    clauses = tuple(make(resolved, whole) for make in _CLAUSES)
    return GuaranteeCard(plan=resolved.plan.digest, summary=_summary(resolved, clauses), clauses=clauses)


def _summary(resolved: ResolvedPlan, clauses: tuple[Clause, ...]) -> str:
    missing = sum(not clause.provided and clause.applies for clause in clauses)
    apart = sum(not clause.applies for clause in clauses)
    rest = f", {apart} do{'es' if apart == 1 else ''} not apply" if apart else ""
    plan, rounds = resolved.plan, resolved.plan.federation.rounds
    return (
        f"Task {plan.task.name}, style {plan.privacy.style}, {len(resolved.parties):,} parties, {rounds} rounds: "
        f"{len(clauses) - missing - apart} of {len(clauses)} clauses are provided, {missing} are not{rest}."
        + (" This is a drill; the card is that of the plan without [attack]." if plan.attack is not None else "")
    )


# ------------------------------------------------------------------------------------------- what is assumed

_CIPHERS = "X25519, HKDF, AES-256-CTR and AES-256-GCM are not broken: the protection is computational"


def _server_kind(resolved: ResolvedPlan) -> str:
    secure = resolved.secure
    if secure is not None and secure.parameters.adversary == "semi-malicious":
        return (
            "the parties know each other's Ed25519 keys from elsewhere than the server (rules.peers in their policies)"
        )
    return "the server follows the protocol and only looks at what it gets"


def _colluders(resolved: ResolvedPlan) -> str:
    secure = resolved.secure
    assert secure is not None
    if (seated := secure.grouping) is not None:
        all_in = f"at most {seated.colluders} of {seated.parties} parties collude with the server, and"
        but = f" (but for a chance of {seated.chance_of_run:.1g} over the run)" if seated.chance else ""
        return f"{all_in} at most {secure.colluders} of one random group{but}; parties that it enrolled itself count"
    many = (
        "1 party of a cohort colludes" if secure.colluders == 1 else f"{secure.colluders} parties of a cohort collude"
    )
    return f"at most {many} with the server; parties that it enrolled itself count"


def _protocol(resolved: ResolvedPlan) -> tuple[str, ...]:
    return (_server_kind(resolved), _colluders(resolved), _CIPHERS)


# ---------------------------------------------------------------------------------------------- the clauses


def _separate(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    dealt = len(resolved.accounts) == 1 and len(resolved.parties) > 1
    if dealt:
        text = (
            f"One holder, {resolved.accounts[0]}, deals out all parties and runs them: this is a simulation, and the "
            "holder knows every update. The clauses on masked sums do not hold against it."
        )
    else:
        text = f"{len(resolved.parties):,} parties keep their records and books themselves."
    return Clause(name="separate-parties", section=_SERVER, title="Parties are separate", provided=not dealt, text=text)


def _one_sum(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    secure = resolved.secure
    title = "The server sees one sum a round, no single update"
    seated = None if secure is None else secure.grouping
    if seated is not None:
        title = f"The server sees {seated.count} sums of random groups a round, no single update"
    if secure is None:
        noise = "; each carries its party's noise" if _noise_before_server(resolved) else ", without any noise on it"
        text = (
            f"The server sees every party's update in every round{noise}. Say aggregation.secure = true to mask them."
        )
        return Clause(name="one-sum", section=_SERVER, title=title, provided=False, text=text)
    if secure.simulated:
        text = "Sums are masked, and the holder that runs the simulation knows all the masks."
        return Clause(name="one-sum", section=_SERVER, title=title, provided=False, text=text)
    text = (
        f"Each sum holds at least {secure.honest} honest updates. From it and all messages, the server and its "
        "colluders learn nothing of a single honest update beyond what the sum itself tells."
    )
    if seated is not None:
        text += (
            f" Groups of {secure.seats} are drawn anew in every round, after keys are committed, so no party chooses. "
            "An honest party is summed with fewer than two other honest ones with a chance of "
            f"{min(1.0, seated.draws * seated.among_colluders(secure.floor)):.1g} over the run. Sites count draws in "
            "their own ledgers: further runs, or a restart, bring no more than charged attempts pay for."
        )
    return Clause(name="one-sum", section=_SERVER, title=title, provided=True, text=text, assuming=_protocol(resolved))


def _noise_before_server(resolved: ResolvedPlan) -> bool:
    return resolved.protected and not (resolved.central_noise and resolved.record_noise is None)


def _threshold(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    secure = resolved.secure
    title = "Many must collude to unmask one update"
    if secure is None:
        text = "Nothing is masked, so no party is needed."
        return Clause(name="threshold", section=_SERVER, title=title, provided=False, text=text)
    chosen = secure.parameters
    title = f"{chosen.threshold} of {chosen.holders} must collude to unmask one update"
    text = (
        f"{chosen.holders} parties hold shares of each party's masks, and it takes {chosen.threshold} of them beside "
        "the server. That is the threshold of this plan, not half of the parties."
    )
    return Clause(
        name="threshold", section=_SERVER, title=title, provided=not secure.simulated, text=text,
        assuming=(_server_kind(resolved), _CIPHERS),
    )  # fmt: skip


def _floor(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    secure = resolved.secure
    title = "Parties refuse to unmask a small sum"
    if secure is None:
        text = "There is no masked sum; a round goes on with the parties that replied."
        return Clause(name="floor", section=_SERVER, title=title, provided=False, text=text)
    text = (
        f"Below {secure.floor} of {secure.cohort} parties no sum is unmasked; the parties check it, also if the "
        f"server lies. A round survives {_losses(secure.may_drop)}, and fails beyond that."
    )
    if secure.grouping is not None:
        text = (
            f"Below {secure.floor} of {secure.seats} parties no group's sum is unmasked; the parties check it, "
            f"also if the server lies. A group survives {_losses(secure.may_drop)}, and is left out beyond that."
        )
    return Clause(name="floor", section=_SERVER, title=title, provided=not secure.simulated, text=text)


def _losses(many: int) -> str:
    return f"{many} drop-out{'' if many == 1 else 's'}" if many else "no drop-out"


def _lying(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    secure = resolved.secure
    title = "The masks hold against a server that lies"
    lies = "about who dropped out, which keys are whose, or which model was sent"
    if secure is None or secure.simulated:
        text = f"Nothing here rests on masks; a server that lies {lies} gets what the plan's noise leaves."
        return Clause(name="lying-server", section=_SERVER, title=title, provided=False, text=text)
    if secure.parameters.adversary != "semi-malicious":
        text = (
            f"A server that lies {lies} may learn single updates. "
            'Say adversary = "semi-malicious" for a threshold that holds against lies about drop-outs.'
        )
        return Clause(name="lying-server", section=_SERVER, title=title, provided=False, text=text)
    text = (
        f"A server that lies {lies}, once keys are committed, ends the round or gets noise. It can still end any round."
    )
    return Clause(
        name="lying-server", section=_SERVER, title=title, provided=True, text=text, assuming=_protocol(resolved)
    )


def _epsilon_clause(unit: PrivacyUnit, observer: Observer) -> Callable[[ResolvedPlan, tuple[Guarantee, ...]], Clause]:
    """The clause of one ε: per ``unit``, against ``observer``."""
    section = _SERVER if observer is Observer.SERVER else _RECIPIENTS
    against = "the server" if observer is Observer.SERVER else "recipients of the model"

    def make(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
        found = next((one for one in whole if one.unit is unit and one.observer is observer), None)
        if observer is Observer.SERVER and _knows_shares(resolved, unit):
            found = None
        name, title = f"{unit}-{observer}", f"What one {unit} adds is hidden from {against}"
        if found is None or not math.isfinite(found.epsilon):
            return Clause(name=name, section=section, title=title, provided=False, text=_why_unbounded(resolved, unit))
        text = (
            f"ε ≤ {_up(found.epsilon)} per {found.whom} at δ = {found.delta:g}, by {found.neighbours} ({found.method})."
        )
        return Clause(
            name=name,
            section=section,
            title=title,
            provided=True,
            text=text,
            assuming=_for_noise(resolved, unit, observer),
        )

    return make


def _knows_shares(resolved: ResolvedPlan, unit: PrivacyUnit) -> bool:
    """Whether the noise is in shares that one holder draws, all of them: it can subtract them."""
    own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
    return resolved.secure is not None and resolved.secure.simulated and resolved.distributed_unit is own


def _why_unbounded(resolved: ResolvedPlan, unit: PrivacyUnit) -> str:
    if _knows_shares(resolved, unit):
        return (
            "In a simulation the holder draws every share of the noise and sees every update; real parties would not."
        )
    if unit is PrivacyUnit.CLIENT and resolved.central_noise:
        return "The server adds the noise itself and sees every clipped update before; it is trusted."
    if not resolved.protected:
        return "Style none adds no noise: there is no bound."
    if unit is PrivacyUnit.PERSON:
        return "No bound is stated for somebody with several records; privacy.person would state one."
    return f"This plan's style promises nothing per {unit}."


def _for_noise(resolved: ResolvedPlan, unit: PrivacyUnit, observer: Observer) -> tuple[str, ...]:
    own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
    secure = resolved.secure
    if resolved.distributed_unit is own and secure is not None:
        if secure.simulated:
            return ("the holder that simulates all parties adds their shares of the noise as planned",)
        shares = f"at least {secure.honest} honest parties of every unmasked sum add their shares of noise as planned"
        return (shares, *(_protocol(resolved) if observer is Observer.SERVER else (_colluders(resolved),)))
    if own is PrivacyUnit.CLIENT and resolved.central_noise:
        return ("the server clips and adds the noise as planned, and shows nothing else",)
    return ("the party itself clips and adds the noise as planned; no other party is trusted for it",)


def _model(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    title = "The released model itself is bounded in what it tells"
    if resolved.protected:
        text = "Models of all rounds and the last one are covered by the ε above, composed over the whole plan."
    else:
        text = "Masked or not, the model is trained on the exact sums and may give records away."
    return Clause(name="released-model", section=_RECIPIENTS, title=title, provided=resolved.protected, text=text)


def _differencing(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    title = "Subtracting one round or run from another tells no more"
    if resolved.protected:
        text = (
            "Every round, attempt and run is charged, also one that is repeated with other parties; the ledger holds "
            "the sum of all to the lifetime budget."
        )
    else:
        text = (
            "Two sums over cohorts that differ in one party tell that party's update. Masks protect one session each "
            "and nothing between them; only noise does."
        )
    return Clause(name="differencing", section=_RECIPIENTS, title=title, provided=resolved.protected, text=text)


def _took_part(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    hidden = resolved.central_noise
    title = "Whether a client took part is hidden from recipients"
    if hidden:
        text = "The ε per client covers being there at all; what recipients get does not tell who was drawn."
    else:
        text = "The plan protects what a party holds; that it takes part is known, and its noise may tell how many did."
    return Clause(name="participation-recipients", section=_RECIPIENTS, title=title, provided=hidden, text=text)


def _other_parties(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    secure = resolved.secure
    title = "A party learns nothing of another beyond the model"
    if secure is not None:
        text = (
            "Parties hold each other's shares, sealed for session and receiver; fewer than "
            f"{secure.parameters.threshold} of them rebuild nothing. Each receives the models, like any recipient."
        )
        return Clause(
            name="other-parties", section=_PARTIES, title=title, provided=not secure.simulated, text=text,
            assuming=(_CIPHERS,),
        )  # fmt: skip
    text = "Updates go to the server alone; each party receives the models, like any recipient."
    return Clause(
        name="other-parties", section=_PARTIES, title=title, provided=True, text=text,
        assuming=("the server hands no update on; the lines are encrypted (TLS)",),
    )  # fmt: skip


def _influence(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    title = "One party that misbehaves moves the result by a bounded step"
    name = "bounded-influence"
    if resolved.secure is not None and (seated := resolved.secure.grouping) is not None:
        text = (
            f"One malicious party can shift its group's sum as far as it likes; the rule sees {seated.count} means and "
            f"allows for {seated.bad(resolved.robust) if resolved.robust else 0} of them to be anything. That it "
            "leaves such a mean out is measured, and proved for no attack that knows the rule."
        )
        return Clause(name=name, section=_RESULT, title=title, provided=False, text=text)
    if resolved.secure is not None:
        text = (
            "No single update is seen, so its length cannot be checked: one malicious party can shift the sum as far "
            "as it likes, unseen. Only honest parties keep to the clip."
        )
        return Clause(name=name, section=_RESULT, title=title, provided=False, text=text)
    if resolved.central_noise:
        text = "The server cuts every update to the clip before it is added."
        return Clause(name=name, section=_RESULT, title=title, provided=True, text=text)
    if resolved.protected:
        text = "The server leaves out an update that is longer than clip, noise, rate and steps allow an honest one."
        return Clause(
            name=name, section=_RESULT, title=title, provided=True, text=text,
            assuming=("the task trains by the plan's own steps, so that the bound is known",),
        )  # fmt: skip
    text = "Nothing is clipped, so no length is too long: one bad party can spoil the model."
    return Clause(name=name, section=_RESULT, title=title, provided=False, text=text)


def _rule(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    rule, title = resolved.robust, "A robust rule stands between the updates and the model"
    if rule is None:
        text = 'A mean believes every update. Say aggregation.rule = "signguard", or another rule, to judge them.'
        return Clause(name="robust-rule", section=_RESULT, title=title, provided=False, text=text)
    if resolved.secure is not None and (seated := resolved.secure.grouping) is not None:
        bad = seated.bad(rule)
        text = (
            f"{rule.facts.title} ({rule.facts.source}) between the means of {seated.count} random groups, for up to "
            f"{bad} of them that may be anything: {rule.facts.breakdown}. {seated.attackers} attackers touch "
            f"{100 * seated.touched.share:.0f} % of the groups on average, half of them or more with a chance of "
            f"{seated.touched.half:.1g} a round, more than {bad} with one of {seated.touched.beyond(bad):.1g}. "
            "Robustness is empirical."
        )
        return Clause(
            name="robust-rule", section=_RESULT, title=title, provided=True, text=text,
            assuming=(f"at most {seated.attackers} of {seated.parties} parties of a round send anything",),
        )  # fmt: skip
    facts, many = rule.facts, f"{resolved.attackers} update{'' if resolved.attackers == 1 else 's'} of a round"
    text = (
        f"{facts.title} ({facts.source}), for up to {many} that may be anything, from "
        f"{max(facts.least(resolved.attackers), 1)} updates on: {facts.breakdown}. Robustness is empirical."
    )
    return Clause(
        name="robust-rule", section=_RESULT, title=title, provided=True, text=text,
        assuming=(f"at most {many} may be anything",),
    )  # fmt: skip


def _sees(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    name, title, found = "rule-sees", "Noise leaves the rule signs and directions to go by", sight(resolved)
    if resolved.robust is None:
        text = "No rule looks at updates."
        return Clause(name=name, section=_RESULT, title=title, provided=False, text=text, applies=False)
    goes_by = {"norm-bounded": "the lengths of updates", "trust": "a trial of each update on a root set"}
    if resolved.robust.name in goes_by:
        text = f"The rule goes by {goes_by[resolved.robust.name]}, by neither signs nor directions."
        return Clause(name=name, section=_RESULT, title=title, provided=False, text=text, applies=False)
    if resolved.robust.facts.needs_trial and resolved.protected:
        text = (
            "The rule goes by the direction of the root set's own update. How long that is depends on the data, so "
            "what noise leaves of it is not known beforehand."
        )
        return Clause(name=name, section=_RESULT, title=title, provided=False, text=text)
    if found is None:
        text = "Updates reach the rule without noise." if not resolved.protected else "Only sums reach the rule."
        return Clause(name=name, section=_RESULT, title=title, provided=not resolved.protected, text=text)
    over = f"{found.noise:.2g} times as long as what two honest updates can have in common"
    if found.against_chance is not None:
        error = f"the sampling error of a mean gradient of {found.records:,.0f} records can be"
        over += f", {found.against_chance:.2g} times as long as {error}"
    if found.faint:
        text = f"The noise on an update is {over}. An attack whose updates are no longer than honest ones is not seen."
    else:
        text = f"The noise on an update is {over}. Below {FAINT:g} of that error, attacks were noticed when measured."
    return Clause(name=name, section=_RESULT, title=title, provided=not found.faint, text=text)


def _robust(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    title = "Poisoned data and backdoors are kept out"
    if resolved.robust is None:
        text = "A mean believes every update; neither masks, clips nor noise stop a party that trains on bad data."
    else:
        text = (
            f"What {resolved.robust.facts.title} withstands was measured, attack by attack, and is proved for none of "
            "them; an attack that knows the rule, or a backdoor that looks like honest training, may pass."
        )
    return Clause(name="robustness", section=_RESULT, title=title, provided=False, text=text)


def _exact(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    title = "The noise is safe in floating point"
    safe = resolved.protected and not resolved.label
    if safe:
        text = "Noise is drawn as whole numbers on a grid, by the operating system's random bits."
    elif resolved.protected:
        text = f"The noise is {resolved.label}: its last bits may tell more than ε says."
    else:
        text = "There is no noise."
    return Clause(name="floating-point", section=_RESULT, title=title, provided=safe, text=text)


def _identities(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    return Clause(
        name="participation-server", section=_NEVER, title="The server does not know who takes part", provided=False,
        text="It knows who took part in each round, by which identifier, who dropped out, when, and how much was sent.",
    )  # fmt: skip


def _unconditional(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    return Clause(
        name="unconditional", section=_NEVER, title="Masks hold against unlimited computers", provided=False,
        text="Masks, sealed shares and signatures are computational (X25519, AES, Ed25519); Shamir's sharing alone is "
        "more than that.",
    )  # fmt: skip


def _outside(resolved: ResolvedPlan, whole: tuple[Guarantee, ...]) -> Clause:
    return Clause(
        name="outside", section=_NEVER, title="Protection beyond the protocol", provided=False,
        text="Not covered: traffic analysis, timing and memory of the processes, denial of service, a site that was "
        "broken into, and identities that were exchanged through the server itself.",
    )  # fmt: skip


_CLAUSES: tuple[Callable[[ResolvedPlan, tuple[Guarantee, ...]], Clause], ...] = (
    _separate,
    _one_sum,
    _threshold,
    _floor,
    _lying,
    *(_epsilon_clause(unit, Observer.SERVER) for unit in PrivacyUnit),
    *(_epsilon_clause(unit, Observer.RECIPIENTS) for unit in PrivacyUnit),
    _model,
    _differencing,
    _took_part,
    _other_parties,
    _influence,
    _rule,
    _sees,
    _robust,
    _exact,
    _identities,
    _unconditional,
    _outside,
)


def _up(epsilon: float) -> str:
    """Rounded up to four digits, so that it stays a bound.

    >>> _up(1.00001), _up(0.12341), _up(8.0)
    ('1.001', '0.1235', '8')
    """
    if epsilon <= 0:
        return "0"
    digits = 3 - math.floor(math.log10(epsilon))
    return f"{math.ceil(epsilon * 10.0**digits - 1e-6) / 10.0**digits:.{max(digits, 0)}f}".rstrip("0").rstrip(".")
