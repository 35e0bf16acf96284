"""A site's own books: what it has paid, in its own count and no other.

The site reserves in its own ledger before it touches its data, by the events that its own copy of the plan states, and
commits before its update leaves. So its books never show less than what left, wherever either side is killed.

* Records and people are charged when the site is asked, for every attempt that reaches it.
* A whole client that is protected by the server's noise is charged for the **whole plan when the site enrols**, since
  it never hears of the rounds that it was not drawn for (rule 1). Unless the policy trusts the server's draw, that
  charge is the plan's as if everyone were asked in every round.
* Nothing is ever refunded here (rule 2): what was reserved stays.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from quietsum.analytics import choose_budget
from quietsum.errors import BudgetExhausted, InvalidParameter, PlanRefused, QuietsumError
from quietsum.failpoints import reach
from quietsum.ledger import (
    Charge,
    Clock,
    Dataset,
    Entry,
    Kind,
    Ledger,
    Receipt,
    Terms,
    Testimony,
    canonical,
    digest,
    exceeds,
    label,
    system_clock,
)
from quietsum.party.questions import DAY, AskedFiles, is_question
from quietsum.plan import SESSIONS, SamplingPlan, charge, sessions_of, span, units
from quietsum.privacy import Budget, PrivacyUnit

if TYPE_CHECKING:
    from pathlib import Path

    from quietsum.party.policy import Policy
    from quietsum.plan import ResolvedPlan

__all__ = [
    "SiteBooks",
    "canaries_beside",
    "charges_digest",
    "enrolment_charges",
    "find_enrolment",
    "list_enrolled_units",
    "name_in_books",
    "read_resolved",
    "site_charges",
    "write_resolved",
]

MOST_KEPT = 100
"""So many refusals of a run are written down beyond the attempts of its plan, and so many heads that came with none."""


def name_in_books(run: str, coordinator: str) -> str:
    """A run as the site's ledger calls it: two coordinators may use the same name."""
    return label("run", f"{run} @ {coordinator[:12]}")


def canaries_beside(ledger: Path) -> Path:
    """Where a site keeps what is recorded of its canaries: in a folder beside its ledger, of the ledger's name."""
    return ledger.with_name(f"{ledger.name}.canaries")


def find_enrolment(ledger: Ledger, run: str) -> tuple[str, ResolvedPlan]:
    """A run by its coordinator's name for it, or by that of the site's own ledger; the latter, and the frozen plan.

    Raises QuietsumError if the ledger holds no such run, or several.
    """
    known = {summary.run: next(ledger.entries(summary.sequence)).body["plan"] for summary in ledger.runs()}
    named = [name for name, plan in known.items() if run in (name, plan.get("run")) and "resolved" in plan]
    if len(named) != 1:
        what = f"several runs are called {run!r}: {', '.join(named)}" if named else (
            f"{run!r} is no run of this site; known: {', '.join(known) or 'none yet'}"
        )  # fmt: skip
        raise QuietsumError(what)
    return named[0], read_resolved(known[named[0]]["resolved"])


def list_enrolled_units(resolved: ResolvedPlan) -> tuple[PrivacyUnit, ...]:
    """Units that are charged for the whole plan when a site enrols."""
    return (PrivacyUnit.CLIENT,) if resolved.central_noise else ()


def site_charges(resolved: ResolvedPlan, party: str, number: int) -> tuple[Charge, ...]:
    """What one attempt at round ``number`` costs the site: both sides compute it, and must come to the same."""
    whole = list_enrolled_units(resolved)
    return tuple(one for one in resolved.charges([party], number) if one.unit not in whole)


def enrolment_charges(resolved: ResolvedPlan, party: str, *, trusting: bool) -> tuple[Charge, ...]:
    """What a site is charged as a whole when it enrols: amplified by the server's draw where it trusts that draw."""
    believed, over = resolved if trusting else _everyone(resolved), span(resolved, resolved.attempts)
    return tuple(charge(believed, party, unit, over) for unit in list_enrolled_units(resolved))


def charges_digest(charges: Sequence[Charge]) -> str:
    """SHA-256 of charges: what both books are compared by."""
    return digest(canonical([one.to_dict() for one in charges]))


@final
class SiteBooks:
    """The ledger of one site, written by its policy."""

    def __init__(self, policy: Policy, ledger: Ledger, *, clock: Clock = system_clock) -> None:
        self.policy, self.ledger, self._clock = policy, ledger, clock
        self._coordinators: dict[str, object] = {}
        self._chances: dict[str, float | None] = {}
        self._kept: collections.Counter[tuple[str, bool]] | None = None
        self._asked = AskedFiles(ledger)

    def enrol(self, run: str, resolved: ResolvedPlan, coordinator: Testimony) -> Receipt | None:
        """Open the run, and reserve and commit what the whole plan costs this client; a second time charges nothing.

        The coordinator's head is kept: a request that it wrote earlier, and this site refused, is never taken later.
        :class:`~quietsum.errors.PlanRefused` or :class:`~quietsum.errors.BudgetExhausted` where it does not fit; then
        nothing was charged.
        """
        name, whole = name_in_books(run, coordinator.ledger), list_enrolled_units(resolved)
        planned = self._plan_charges(resolved)
        self.check_lifetimes()
        if not self.knows(run, coordinator.ledger):
            self.check_day(resolved)
        reach("party:before-open")
        with _name_remedy(self.policy):
            self.ledger.open_run(
                name,
                plan={
                    "run": run,
                    "coordinator": coordinator.ledger,
                    "federation": {"rounds": resolved.plan.federation.rounds},
                    "resolved": write_resolved(resolved),
                },
                terms=self._terms(resolved),
                planned=planned,
                datasets=[self._dataset()],
                lifetimes=self._lifetimes(),
            )
        reach("party:opened")
        if not whole or self.ledger.next_attempt(name, 0) > 1:
            self.note(run, coordinator)  # whatever was asked and refused before is older than this
            return None
        with _name_remedy(self.policy):
            receipt = self.ledger.reserve(
                name, 0, 1, [one for one in planned if one.unit in whole], seen=self._name_head(run, coordinator)
            )
        reach("party:enrolled")
        self.ledger.commit(receipt)
        return receipt

    def rehearse(self, resolved: ResolvedPlan) -> None:
        """Raise what :meth:`enrol` would raise in a new run; nothing is written."""
        self.check_name()
        self.check_lifetimes()
        self.check_day(resolved)
        with _name_remedy(self.policy):
            self.ledger.would_open(
                "a plan that is only looked at",
                terms=self._terms(resolved),
                planned=self._plan_charges(resolved),
                datasets=[self._dataset()],
                lifetimes=self._lifetimes(),
                rounds=resolved.plan.federation.rounds,
            )

    def protect(self) -> None:
        """Where the policy protects data that the ledger still calls public, set its budgets: what was spent counts.

        :class:`~quietsum.errors.InvalidParameter` where the ledger has known a larger budget, or another δ.
        """
        self.check_name()
        mine, known = self.policy.dataset, self.ledger.budgets()
        missing = [unit for unit in self.policy.budgets if (self.policy.name, mine.name, unit) not in known]
        if (self.policy.name, mine.name) in self.ledger.public_datasets():
            missing = list(self.policy.budgets)
        elif len(missing) == len(self.policy.budgets):  # its first run sets them all; if some are there, go on with it
            return
        for unit in missing:
            allowed = self.policy.budgets[unit]
            self.ledger.raise_budget(
                party=self.policy.name, dataset=mine.name, unit=unit, epsilon=allowed.epsilon, delta=allowed.delta,
                reason="the site's policy protects what was declared public before",
            )  # fmt: skip

    def check_name(self) -> None:
        """The ledger is of this site: under another name the same data would begin a second lifetime."""
        mine = self.policy.dataset.name
        known = {(party, dataset) for party, dataset, _ in self.ledger.budgets()} | set(self.ledger.public_datasets())
        others = sorted(party for party, dataset in known if dataset == mine and party != self.policy.name)
        if others:
            raise InvalidParameter(
                "site.name", self.policy.name, f"is not the name under which the ledger keeps {mine!r}",
                f"a dataset has one lifetime: be {others[0]!r} again",
            )  # fmt: skip

    def check_lifetimes(self) -> None:
        """A ledger's budget never goes down: where the policy has since become stricter, nothing runs at all."""
        mine = self.policy.dataset
        if self.policy.budgets and (self.policy.name, mine.name) in self.ledger.public_datasets():
            raise PlanRefused(f"the ledger calls {mine.name!r} public, and the policy protects it; start serving again")
        for (_, dataset, unit), budget in self.ledger.budgets().items():
            allowed = self.policy.budgets.get(unit)
            if dataset != self.policy.dataset.name or allowed is None:
                continue
            if allowed.epsilon < budget.epsilon or allowed.delta != budget.delta:
                raise PlanRefused(
                    f"the ledger's lifetime of ε = {budget.epsilon:g} per {unit} at δ = {budget.delta:g} does not fit "
                    f"the policy's ε = {allowed.epsilon:g} per {unit} at δ = {allowed.delta:g}, and a ledger's never "
                    f"goes down: set epsilon = {budget.epsilon} or more and delta = {budget.delta} under [{unit}] in "
                    "the policy and serve again, or nothing runs"
                )
        for book in self.ledger.lifetime():
            if book.dataset != mine.name or book.budget is None or book.guarantee is None:
                continue
            if exceeds(book.guarantee.epsilon, book.budget.epsilon):
                raise PlanRefused(
                    f"more was spent per {book.unit} than its lifetime of ε = {book.budget.epsilon:g} per {book.unit}, "
                    "while it was public or by prices that were corrected since (quietsum ledger show tells both)"
                )

    def check_day(self, resolved: ResolvedPlan) -> None:
        """:class:`~quietsum.errors.BudgetExhausted` where one more file of questions is too much for 24 hours."""
        asked = self.policy.questions
        if asked is None or not resolved.limits or not is_question(resolved):
            return
        limit = choose_budget(resolved)
        begin = self._clock() - DAY
        spent = self._asked.since(begin)
        if exceeds(spent + limit.epsilon, asked.day):
            raise BudgetExhausted(
                f"questions of the last 24 hours cost ε = {spent:g} together, and this file ε = {limit.epsilon:g} per "
                f"{limit.unit}; the policy allows ε = {asked.day:g} a day: wait, or raise questions.day"
            )

    def knows(self, run: str, coordinator: str) -> bool:
        """Whether the site has enrolled in this run."""
        name = name_in_books(run, coordinator)
        return any(known.run == name for known in self.ledger.runs())

    def is_answered(self, run: str, coordinator: str, number: int, attempt: int) -> bool:
        """Whether this attempt, or a later one of its round, was reserved or refused before."""
        name = name_in_books(run, coordinator)
        return self.knows(run, coordinator) and self.ledger.next_attempt(name, number) > attempt

    def is_reserved(self, run: str, coordinator: str, number: int, attempt: int) -> bool:
        """Whether this very attempt was reserved, so that its data may have been touched."""
        name = name_in_books(run, coordinator)
        return self.knows(run, coordinator) and (number, attempt) in self.ledger.reservations(name)

    def refuse(self, run: str, number: int, attempt: int, coordinator: Testimony) -> None:
        """Write down that this attempt was refused, so that it is never answered, by no later process either.

        An attempt that the books have passed is not written down again. A run has no more refusals than its plan has
        attempts, and :data:`MOST_KEPT` besides: :class:`~quietsum.errors.PlanRefused` beyond, and nothing is written.
        """
        if not self.knows(run, coordinator.ledger):
            return
        name = name_in_books(run, coordinator.ledger)
        reserved = self.is_reserved(run, coordinator.ledger, number, attempt)
        if self.is_answered(run, coordinator.ledger, number, attempt) and not reserved:
            return
        self._check_kept(run, name, coordinator, refused=True)
        self.ledger.witness(name, self._name_head(run, coordinator), refused=(number, attempt))

    def _check_kept(self, run: str, name: str, coordinator: Testimony, *, refused: bool) -> None:
        """Count one more entry that costs a coordinator nothing but a message; PlanRefused where there are too many."""
        kept = self._kept = self._count_kept() if self._kept is None else self._kept
        most = MOST_KEPT
        if kept[name, refused] >= most:  # the plan is only read here
            most += self.find_plan(run, coordinator.ledger).attempts
        if kept[name, refused] >= most:
            word = "refusals of requests" if refused else "greetings"
            raise PlanRefused(f"the books of this site hold {most} {word} of {run!r}, and take no more of that run")
        kept[name, refused] += 1

    def _count_kept(self) -> collections.Counter[tuple[str, bool]]:
        """For each run how many refusals stand in the ledger, and how many enrolments that came again."""
        asked: collections.Counter[tuple[str, bool]] = collections.Counter()
        reserved: set[tuple[str, int, int]] = set()
        for entry in self.ledger.entries():
            if entry.kind not in (Kind.RESERVE, Kind.WITNESS):
                continue
            run, number, attempt = (entry.body[name] for name in ("run", "round", "attempt"))
            if entry.kind is Kind.RESERVE:
                reserved.add((run, number, attempt))
            elif (run, number, attempt) not in reserved and (number > 0 or attempt == 0):  # else a session was drawn
                asked[run, number > 0] += 1
        return asked

    def list_enrolment_charges(self, run: str, resolved: ResolvedPlan, coordinator: str) -> list[dict[str, Any]]:
        """The charges with which the site enrolled, as plain values: what the coordinator compares with its own."""
        planned, whole = self._entry(run, coordinator).body["planned"], list_enrolled_units(resolved)
        return [dict(one) for one in planned if one["unit"] in whole]

    def check_booked(self, run: str, resolved: ResolvedPlan, coordinator: str) -> None:
        """What the site enrolled with is no less than its policy asks for now, and no more than it allows."""
        booked = self._entry(run, coordinator).body["planned"]
        client = self.policy.client
        spent = self.ledger.spending_by_party(name_in_books(run, coordinator)).get(
            (self.policy.name, PrivacyUnit.CLIENT)
        )
        if client is not None and spent is not None and exceeds(spent.epsilon, client.of_a_run):
            raise PlanRefused(
                f"the site enrolled in {run!r} for ε = {spent.epsilon:.6g} per client, more than the "
                f"ε = {client.of_a_run:g} per client that its policy allows for one run now"
            )
        enough = [enrolment_charges(resolved, self.policy.name, trusting=trust) for trust in {False, self._trusting}]
        for alternatives in zip(*enough, strict=True):
            if not any(one.to_dict() in booked for one in alternatives):
                raise PlanRefused(
                    f"the site enrolled in {run!r} when its policy still trusted the server's draw of parties, and "
                    f"was charged less per {alternatives[0].unit} than it asks for now"
                )

    def reserve(
        self, run: str, resolved: ResolvedPlan, number: int, attempt: int, coordinator: Testimony
    ) -> tuple[Receipt, tuple[Charge, ...]]:
        """Reserve one attempt before any data is touched; BudgetExhausted where it does not fit."""
        name = name_in_books(run, coordinator.ledger)
        if list_enrolled_units(resolved):  # paid for as a whole, so nothing but this count ends it
            self._check_quota(name, resolved, number)
        charges = site_charges(resolved, self.policy.name, number)
        charges = tuple(dataclasses.replace(one, dataset=self.policy.dataset.name) for one in charges)
        with _name_remedy(self.policy):
            receipt = self.ledger.reserve(
                name, number, attempt, charges, seen=self._name_head(run, coordinator),
                also=lambda: self.check_day(resolved),
            )  # fmt: skip
        return receipt, charges

    def draw(self, run: str, resolved: ResolvedPlan, coordinator: Testimony) -> None:
        """Write down that a session with groups is opened, before this site reveals anything of its draw.

        Guarantees: what is counted is in the ledger, so no restart, farewell or new name of a run makes it undone. A
        run has no more sessions than its plan says (:data:`~quietsum.plan.groups.SESSIONS` for each planned attempt).
        Over the dataset's life there are no more than that for each attempt that was *charged* or is at hand, and
        ``rules.lost_sessions`` besides; if that is unset, one plan's sessions besides the charged ones. So a
        coordinator that begins run after run and asks for no update gets the draws of one plan. The same holds for
        their chances, each session weighed by the chance β of its own plan's draws, so that draws which cost little
        buy none that cost more.
        :class:`~quietsum.errors.PlanRefused` if this session would be one more; then nothing was written.
        """
        name, most = name_in_books(run, coordinator.ledger), sessions_of(resolved)
        if most is None:
            return
        lost = self.policy.rules.lost_sessions
        beyond = most if lost is None else SESSIONS + lost  # the attempt at hand is not charged yet
        now = self._chance(name) or 0.0
        chances = {
            one: self._chance(one) for one in self.ledger.drawing_sessions(self.policy.name, self.policy.dataset.name)
        }

        def check(drawn: Mapping[str, tuple[int, int]]) -> None:
            if drawn.get(name, (0, 0))[0] >= most:
                raise PlanRefused(f"groups were drawn in {most} sessions of {run!r}, and its plan has no more")
            owed, tried = 1, now  # this one; then sessions, and their chances, that no charge has paid for
            for one, (sessions, charged) in drawn.items():
                beta = chances.get(one)  # None: its plan cannot be read any more, so it earns nothing
                owed += sessions - SESSIONS * charged
                tried += now * sessions if beta is None else beta * (sessions - SESSIONS * charged)
            if owed > beyond or (now and tried > now * beyond * (1 + 1e-9)):
                count = sum(sessions for sessions, _ in drawn.values())
                raise PlanRefused(
                    f"groups were drawn in {count} sessions for {self.policy.dataset.name!r}, and too few of them led "
                    "to an update that was charged: another one is another try to seat this site among colluders. If "
                    f"rounds were lost by accident, set rules.lost_sessions in the policy above "
                    f"{beyond - SESSIONS}, at the price of as many more tries"
                )

        reach("party:before-draw")
        self.ledger.draw(name, self._name_head(run, coordinator), check)
        reach("party:drawn")

    def _chance(self, name: str) -> float | None:
        """β of a draw of a run in the books; None if its plan cannot be read any more."""
        if name not in self._chances:
            try:
                secure = read_resolved(self.ledger.run_entry(name).body["plan"]["resolved"]).secure
                grouping = None if secure is None else secure.grouping
                self._chances[name] = 0.0 if grouping is None else grouping.chance
            except QuietsumError:
                self._chances[name] = None
        return self._chances[name]

    def note(self, run: str, coordinator: Testimony) -> None:
        """Keep the coordinator's newest head, where the site has enrolled in the run; PlanRefused for too many."""
        name = name_in_books(run, coordinator.ledger)
        if self.last_seen_in(run, coordinator.ledger) == coordinator:
            return
        self._check_kept(run, name, coordinator, refused=False)
        self.ledger.witness(name, self._name_head(run, coordinator))

    def find_plan(self, run: str, coordinator: str) -> ResolvedPlan:
        """The plan with which the site has enrolled."""
        return read_resolved(self._entry(run, coordinator).body["plan"]["resolved"])

    def _entry(self, run: str, coordinator: str) -> Entry:
        name = name_in_books(run, coordinator)
        known = next(known for known in self.ledger.runs() if known.run == name)
        return next(self.ledger.entries(known.sequence))

    def coordinators(self) -> tuple[str, ...]:
        """The ledgers of all coordinators in whose runs this site has enrolled, the first one first."""
        for known in self.ledger.runs():
            if known.run not in self._coordinators:
                plan = next(self.ledger.entries(known.sequence)).body["plan"]
                self._coordinators[known.run] = plan.get("coordinator")
        return tuple(dict.fromkeys(name for name in self._coordinators.values() if isinstance(name, str)))

    def last_seen(self, coordinator: str) -> Testimony | None:
        """The newest head of that coordinator's ledger that this site has kept."""
        mine = (told for told in self.ledger.other_heads().values() if told.ledger == coordinator)
        return max(mine, key=lambda told: told.head.sequence, default=None)

    def last_seen_in(self, run: str, coordinator: str) -> Testimony | None:
        """The same, as it came with this run: several runs of one coordinator need not be heard in order."""
        return self.ledger.other_heads().get(name_in_books(run, coordinator))

    # ------------------------------------------------------------------------------------------- the plan's part

    def _check_quota(self, name: str, resolved: ResolvedPlan, number: int) -> None:
        """A site that paid for the whole plan is asked no more often than the plan has rounds of each noise."""
        factor = resolved.plan.stage(number).noise
        allowed = span(resolved, resolved.attempts).get(factor, 0)
        asked = [round for round, _ in self.ledger.reservations(name) if round > 0]
        if sum(resolved.plan.stage(round).noise == factor for round in asked) >= allowed:
            raise PlanRefused(
                f"the plan has {allowed} attempts at the noise of round {number}, and the site was asked for them all"
            )

    def _plan_charges(self, resolved: ResolvedPlan) -> tuple[Charge, ...]:
        over, name = span(resolved, resolved.attempts), self.policy.name
        whole = {one.unit: one for one in enrolment_charges(resolved, name, trusting=self._trusting)}
        return tuple(whole.get(unit) or charge(resolved, name, unit, over) for unit in units(resolved))

    @property
    def _trusting(self) -> bool:
        """Whether the server's draw is believed; where no one is protected there is nothing to lose by it."""
        return self.policy.rules.trust_server_sampling or not self.policy.budgets

    def _terms(self, resolved: ResolvedPlan) -> Terms:
        terms = resolved.terms()
        return dataclasses.replace(terms, limits=self._limits(terms.limits), enrolled=list_enrolled_units(resolved))

    def _lifetimes(self) -> list[Budget]:
        return [budget.lifetime(unit) for unit, budget in self.policy.budgets.items()]

    def _limits(self, limits: Sequence[Budget]) -> tuple[Budget, ...]:
        """The plan's own limits; per client, without trust in the server's draw, the policy's for one run."""
        client = self.policy.client
        if self._trusting or client is None:
            return tuple(limits)
        return tuple(
            dataclasses.replace(limit, epsilon=client.of_a_run) if limit.unit is PrivacyUnit.CLIENT else limit
            for limit in limits
        )

    def _dataset(self) -> Dataset:
        mine = self.policy.dataset
        return Dataset(party=self.policy.name, dataset=mine.name, size=mine.size, public=mine.public)

    @staticmethod
    def _name_head(run: str, coordinator: Testimony) -> dict[str, Testimony]:
        return {name_in_books(run, coordinator.ledger): coordinator}


@contextlib.contextmanager
def _name_remedy(policy: Policy) -> Iterator[None]:
    """Give a refused budget the remedy of this site, which allows more in two places: its policy and its ledger."""
    try:
        yield
    except BudgetExhausted as error:
        raise BudgetExhausted(_remedy_of(str(error), policy)) from None


def _remedy_of(words: str, policy: Policy) -> str:
    """The ledger's own remedy, with the folder of this site's ledger and, if the policy allows too little, its part."""
    before, command, rest = words.partition("quietsum ledger raise ")
    if not command:
        return words
    given = shlex.split(rest)
    options = dict(zip(given[::2], given[1::2], strict=False))
    wanted, table = options.get("--epsilon", "EPSILON"), options.get("--unit", PrivacyUnit.RECORD.value)
    allowed = policy.budgets.get(PrivacyUnit(table))
    first = f"set epsilon = {wanted} or more under [{table}] in the policy, serve again, and then "
    if allowed is not None and wanted != "EPSILON" and allowed.epsilon >= float(wanted):
        first = ""
    folder = policy.path(policy.site.ledger).parent
    return f"{before}{first}{command}{shlex.join(['--workspace', str(folder)])} {rest}"


def _everyone(resolved: ResolvedPlan) -> ResolvedPlan:
    """The plan as if everyone were asked in every round: no draw that anybody has to believe in."""
    federation = dataclasses.replace(resolved.plan.federation, sampling=SamplingPlan())
    return dataclasses.replace(resolved, plan=dataclasses.replace(resolved.plan, federation=federation))


# ------------------------------------------------------------------------------------------ a plan that travels


def write_resolved(resolved: ResolvedPlan) -> dict[str, Any]:
    """A resolved plan as plain values: the plan, who takes part, and the noise that was calibrated."""
    from quietsum.ledger import budget_to

    return {
        "plan": resolved.plan.to_dict(),
        "digest": resolved.plan.digest,
        "parties": [dataclasses.asdict(facts) for facts in resolved.parties],
        "dimension": resolved.dimension,
        "record_noise": resolved.record_noise,
        "client_noise": resolved.client_noise,
        "limits": [budget_to(limit) for limit in resolved.limits],
    }


def read_resolved(values: Mapping[str, Any]) -> ResolvedPlan:
    """The resolved plan that came; :class:`~quietsum.errors.PlanRefused` where it is none, or not what it says it is.

    Its noise is taken as it stands: what it costs is computed by the site's ledger, not believed. The house's own
    refusals (:mod:`quietsum.plan.refusals`) are asked here again, by this side's copy.
    """
    from quietsum.errors import QuietsumError
    from quietsum.ledger import budget_from
    from quietsum.plan import PartyFacts, Plan, ResolvedPlan, check_plan, taking_part
    from quietsum.validate import positive, whole_number

    try:
        if set(values) != {"plan", "digest", "parties", "dimension", "record_noise", "client_noise", "limits"}:
            raise PlanRefused("the plan that came has other parts than a plan")
        plan = Plan.from_dict(values["plan"])
        if plan.digest != values["digest"]:
            raise PlanRefused("the plan that came is not the one whose hash came with it")
        parties = tuple(PartyFacts(**facts) for facts in values["parties"])
        check_plan(plan, parties)
        noise = {
            name: None if values[name] is None else positive(name, values[name])
            for name in ("record_noise", "client_noise")
        }
        if (noise["record_noise"] is not None) != plan.privacy.style.records:
            raise PlanRefused("the plan's style and its noise per record do not fit together")
        if (noise["client_noise"] is not None) != plan.privacy.style.clients:
            raise PlanRefused("the plan's style and its noise per client do not fit together")
        return ResolvedPlan(
            plan=plan,
            parties=taking_part(plan, parties),
            dimension=whole_number("dimension", values["dimension"], 1),
            record_noise=noise["record_noise"],
            client_noise=noise["client_noise"],
            limits=tuple(budget_from(limit) for limit in values["limits"]),
        )
    except PlanRefused:
        raise
    except (QuietsumError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        told = str(error) if isinstance(error, QuietsumError) else type(error).__name__
        raise PlanRefused(f"the plan that came cannot be read ({told})") from None
