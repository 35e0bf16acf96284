"""A site at work: it reads a request, asks its policy and its own books, and only then its data.

:meth:`SiteService.answer` takes bytes and returns bytes, so any carrier will do. In this order, and no other: is the
message whole and signed; is it from the coordinator this site works for; are both ledgers still what they were; does
the policy allow the plan; does it fit the site's own books; is it new. Then the charge is reserved on disk, then data
is touched, then the charge is committed on disk, then the update leaves. A server may ask, and this is
all the code that answers. Nothing that comes is ever executed. Where the plan asks for secure aggregation the update
leaves masked, at the third of five steps, and the others touch nothing (:mod:`quietsum.party.secure`).
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from quietsum import wire
from quietsum.errors import (
    BudgetExhausted,
    CorruptState,
    InvalidParameter,
    LedgerBroken,
    PlanRefused,
    QuietsumError,
)
from quietsum.failpoints import reach
from quietsum.ledger import Clock, Ledger, StoreFailed, check_succession, label, system_clock
from quietsum.mechanisms import system_randomness
from quietsum.party.books import SiteBooks, name_in_books, resolved_from, resolved_to
from quietsum.party.data import DataCheck
from quietsum.party.peers import UnknownPeer, certificate, identity_of, peers_of
from quietsum.party.questions import is_question
from quietsum.party.refusing import (
    AGAIN,
    NOT_BOOKED,
    TOO_LARGE,
    Refused,
    Said,
    allowed,
    booked,
    kind_of,
    too_large,
    whole,
)
from quietsum.party.secure import Key, SecureSite, contribution_of, model_hash, terms_of
from quietsum.party.trial import Enrolled, own_task, tried
from quietsum.party.work import NotTouched, Site, Task, look_for_data
from quietsum.secagg import DRAWING, Adversary, Policy as Insists, Reason, Refused as Unwilling, Step

if TYPE_CHECKING:
    from quietsum.ledger import Charge, Receipt
    from quietsum.mechanisms import RandomSource
    from quietsum.party.alerting import SiteAlerts
    from quietsum.party.policy import Policy
    from quietsum.plan import Plan, ResolvedPlan

__all__ = ["SiteService"]

log = logging.getLogger(__name__)

NodeSigns = Callable[[bytes], bytes]
"""A signature of the site's node key, by which the coordinator knows it."""


_LEDGER = "own ledger, for"
_STEPS = {
    step.name.lower(): step for step in (Step.OPEN, *DRAWING, Step.ROSTER, Step.SHARES, Step.SURVIVORS, Step.AGREED)
}
MOST_REFUSALS = 10_000
"""So many refused requests are remembered: come again, they are refused again."""


@final
class SiteService:
    """One site.

    Guarantees: data is touched only for a plan that the policy allows, after its charge is on disk in the site's own
    ledger, and nothing leaves before that charge is committed there. A request is known by (run, round, attempt, hash
    of the model): delivered twice, it gets the same bytes or none (rule 10). Events are reported, no ε. Nothing of what
    comes makes this raise. Where the plan promises anything, a failure shows nowhere but in the site's own log: what
    leaves, and is charged, is the plan's steps on no rows (rule 17).
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        *,
        node_key: NodeSigns | None = None,
        rng: RandomSource | None = None,
        task: Callable[[Plan], Task] | None = None,
        clock: Callable[[], float] = time.monotonic,
        interruptible: bool = True,
        alerts: SiteAlerts | None = None,
        now: Clock = system_clock,
    ) -> None:
        """``interruptible``: whether a KeyboardInterrupt may be the owner's, and not the task's.

        ``alerts`` are the site operator's; unless stated there are none. ``now`` is the time of day, by which the ε of
        a day's questions is counted.
        """
        self._interruptible, self._alerts = interruptible, alerts
        self.policy, self.books = policy, SiteBooks(policy, ledger, clock=now)
        self._ledger, self._node_key, self._clock = ledger, node_key, clock
        self._rng, self._task = rng or system_randomness(), task or (lambda plan: own_task(policy, plan))
        self._runs: dict[tuple[str, str], Enrolled] = {}
        self._met: dict[tuple[str, str], dict[str, str]] = {}  # peers, past a farewell
        self._session = secrets.token_hex(8)
        self._refusals: collections.deque[str] = collections.deque(maxlen=MOST_REFUSALS)
        self._said = Said()
        self._data = None if policy.data is None else DataCheck(policy)
        self.books.protect()

    def answer(self, content: bytes) -> bytes:
        """The reply to one message, whatever it is; empty where not even a refusal can be signed."""
        try:
            reply = self._replied(content)
        except Exception:
            log.exception("a message could not even be refused")
            reply = b""
        if self._alerts is not None:  # what was charged is committed by now
            self._alerts.look()
        return reply

    def _replied(self, content: bytes) -> bytes:
        try:
            letter = wire.read_letter(content, most=self.policy.rules.largest_message)
        except wire.UnreadableLetter as error:
            self._say("unread", "a message was left unread: %s", error)
            return self._written("unreadable", {"reason": str(error)})
        try:
            return self._answered(letter)
        except Refused as refusal:
            told = f"{letter.kind[:40]!r} refused: {refusal}" + (f" ({refusal.aside})" if refusal.aside else "")
            if self._say(f"{letter.kind[:40]} of {letter.sender.ledger}", "%s", told) and self._alerts is not None:
                run, spent = str(letter.body.get("run") or "")[:100], isinstance(refusal.__context__, BudgetExhausted)
                (self._alerts.spent if spent else self._alerts.refused)(told, run=run)
            return self._refuse(letter, str(refusal), for_good=refusal.for_good)
        except LedgerBroken as error:
            told = f"nothing is done any more until the ledger is in order: {error}"
            if self._say(f"{_LEDGER} {letter.sender.ledger}", "%s", told, level=logging.ERROR) and self._alerts:
                self._alerts.broken(str(error))
            return self._refuse(letter, "its own ledger is not in order")
        except StoreFailed as error:
            told = f"refused, since the ledger takes no entry: {error}"
            self._say(f"{_LEDGER} {letter.sender.ledger}", "%s", told, level=logging.ERROR)
            return self._refuse(letter, "its ledger could not be written")
        except Exception as error:  # ours, and nobody's business elsewhere
            log.exception("a %s could not be answered", letter.kind)
            return self._reply(letter, "lost", {"reason": kind_of(error)})

    def _say(self, about: str, words: str, *values: object, level: int = logging.WARNING) -> bool:
        """Say it once; greetings come every second, and the same words again are for whoever looks closely."""
        anew = self._said.anew(about, words % values)
        log.log(level if anew else logging.DEBUG, words, *values)
        return anew

    def _refuse(self, letter: wire.Letter, reason: str, *, for_good: bool = False) -> bytes:
        """Say no, unless the attempt was reserved before: then data may have been touched, and it is lost.

        A refusal is written down: the coordinator may take the charge back, so the attempt is never answered later.
        """
        if letter.kind in ("train", "secure"):
            if self._reserved(letter):
                return self._reply(letter, "lost", {"reason": AGAIN})
            if not for_good:  # a policy may be changed, a budget raised, a disk emptied
                self._refusals.append(letter.digest)
                if not self._noted(letter):
                    return self._reply(letter, "lost", {"reason": reason})
        return self._reply(letter, "refused", {"reason": reason})

    def _reserved(self, letter: wire.Letter) -> bool:
        """Whether the books hold a reservation for this attempt; yes where they cannot be read."""
        try:
            run, number, attempt = self._key(letter)
        except Refused:
            return False
        try:
            return self.books.reserved(run, letter.sender.ledger, number, attempt)
        except Exception:
            log.exception("the books do not say whether this attempt was reserved")
            return True

    def _noted(self, letter: wire.Letter) -> bool:
        """Write the refusal down; without that, a later process might answer what the coordinator has taken back."""
        try:
            run, number, attempt = self._key(letter)
        except Refused:
            return True  # it can never be answered
        try:
            self.books.refuse(run, number, attempt, letter.sender)
        except QuietsumError as error:
            told = f"refusal of {letter.sender.ledger}"
            self._say(told, "the refusal was not written down, so the request counts as lost: %s", error)
            return False
        return True

    def _key(self, letter: wire.Letter) -> tuple[str, int, int]:
        return self._run_of(letter), whole(letter.body, "round"), whole(letter.body, "attempt")

    def _answered(self, letter: wire.Letter) -> bytes:
        if too_large(letter.body):
            raise Refused(TOO_LARGE, for_good=True)
        self._check_coordinator(letter)
        if letter.knows is not None and self._said.over(f"{_LEDGER} {letter.sender.ledger}"):
            log.warning("the ledger is in order again")
        match letter.kind:
            case "hello":
                return self._hello(letter)
            case "enrol":
                return self._enrol(letter)
            case "train":
                return self._train(letter)
            case "secure":
                return self._secure(letter)
            case "farewell":
                return self._farewell(letter)
        raise Refused(f"a message of kind {letter.kind[:40]!r} is unknown here")

    # ------------------------------------------------------------------------------------------ who speaks

    def _check_coordinator(self, letter: wire.Letter) -> None:
        """It is the one coordinator of this site, and neither ledger has gone back behind what the other has kept."""
        if letter.to != self.policy.name and (letter.kind != "hello" or letter.to):
            raise Refused("the message is for another site", for_good=True)
        told, pinned = letter.sender.ledger, self.policy.coordinator.ledger
        known = (pinned,) if pinned else self.books.coordinators()
        if known and told not in known:
            raise Refused(
                f"it works for another coordinator than the one whose ledger is {told}; the site's policy names it "
                "under coordinator.ledger",
                aside=f"it works for the coordinator whose ledger is {known[0]}",
            )
        if (ours := letter.knows) is not None:
            if ours.ledger != self._ledger.identity.ledger:
                raise LedgerBroken(
                    f"is another one than this site had ({ours.ledger}), says a head that the coordinator has kept",
                    remedy="put the site's own ledger back; a new one has forgotten what was spent",
                )
            if not self._ledger.contains(ours.head):
                raise LedgerBroken(
                    "does not contain a head that it signed and the coordinator has kept: it was cut, rewritten, or an "
                    "older copy was put back",
                    at=ours.head.sequence,
                    remedy="restore the newest copy, and serve nobody until then",
                )
        if letter.kind != "hello":  # a greeting may have been overtaken by what was sent after it
            try:
                last = self.books.last_seen_in(self._run_of(letter), told)
                check_succession("the coordinator", last, letter.sender)
            except CorruptState as error:
                raise Refused(str(error)) from None

    def _hello(self, letter: wire.Letter) -> bytes:
        body = {"party": self.policy.name, "session": self._session, "signature": ""}
        if self._node_key is not None:
            message = wire.node_statement(letter.digest, self.policy.name, self._ledger.identity.public_key)
            body["signature"] = self._node_key(message).hex()
        return self._reply(letter, "here", body)

    # --------------------------------------------------------------------------------------------- enrolling

    def _enrol(self, letter: wire.Letter) -> bytes:
        run = self._run_of(letter)
        resolved = allowed(lambda: resolved_from(letter.body.get("resolved", {})))
        try:
            self._check_same(run, resolved, letter.sender.ledger)
            enrolled = self._begin(resolved)
            booked(run, lambda: self.books.enrol(run, resolved, letter.sender))
            # it may have enrolled under another policy
            booked(run, lambda: self.books.check_booked(run, resolved, letter.sender.ledger))
        except (Refused, LedgerBroken, StoreFailed):
            raise
        except QuietsumError as error:  # no data was touched yet, so whatever is wrong with the plan is a refusal
            raise Refused(str(error)) from None
        enrolled = self._remembering(run, letter.sender.ledger, enrolled)
        self._runs.setdefault((run, letter.sender.ledger), enrolled)  # only what the books hold, and never another plan
        if self._alerts is not None:
            self._alerts.charged()
        log.info("enrolled in %s: task %s", run, resolved.plan.task.name)
        reach("party:before-enrolled-reply")
        charges = self.books.enrolled_with(run, resolved, letter.sender.ledger)
        body: dict[str, Any] = {"plan": resolved.plan.digest, "charges": charges}
        if resolved.secure is not None:
            own = self._ledger.identity.public_key
            body["identity"] = certificate(self._ledger, own, self.policy.name, identity_of(self._ledger))
        return self._reply(letter, "enrolled", body)

    def _check_same(self, run: str, resolved: ResolvedPlan, coordinator: str) -> None:
        """A run has one plan, to the last digit of its noise."""
        if self.books.knows(run, coordinator):
            known = booked(run, lambda: self.books.resolved(run, coordinator))
            if resolved_to(known) != resolved_to(resolved):
                raise Refused("the site has enrolled in this run with another plan")

    def _begin(self, resolved: ResolvedPlan) -> Enrolled:
        """Ask the policy, make the task and try it on made-up records; nothing is charged yet, so no record is read."""
        self.policy.check(resolved)
        booked(resolved.plan.task.name, self.books.check_lifetimes)
        name, protected = self.policy.name, not self.policy.dataset.public
        task, due = tried(
            lambda: self._task(resolved.plan), resolved, name, unseen=protected, interruptible=self._interruptible
        )
        data = self._data_of(resolved)
        if data is not None:
            data.check_task(task)
        check = None if data is None else lambda: data.before_training(task, name, self._told_of_data)
        enrolled = Enrolled(resolved, task, name, due=due, check=check)
        self._look(enrolled)
        return enrolled

    def _site(self, enrolled: Enrolled) -> Site:
        """One that answers once: which attempts were answered before is for the books to say."""
        limit, data = enrolled.resolved.plan.federation.deadline, self._data_of(enrolled.resolved)
        return Site(
            self.policy.name,
            task=enrolled.task,
            resolved=enrolled.resolved,
            rng=self._rng,
            deadline=math.inf if limit is None else limit,
            clock=self._clock,
            first=enrolled.first,
            interruptible=self._interruptible,
            tell=self._told_here,
            fits=data.fits if data is not None and data.drops else None,
        )

    def _data_of(self, resolved: ResolvedPlan) -> DataCheck | None:
        """The check of what a plan reads; none for questions.

        Those bring each value to the declared bounds and categories by itself. If one record could make the whole table
        unfit, it would move a count by all records, which a reader sees at once.
        """
        return None if is_question(resolved) else self._data

    def _told_here(self, name: str, told: str) -> None:
        """What became of the work, for the site's owner alone; once, for as long as it stays the same."""
        self._say(
            "work", "%s: its work failed, so what leaves holds nothing of its data, and is charged: %s", name, told
        )

    def _told_of_data(self, told: str) -> None:
        """That data does not fit and what follows, for the site's owner alone."""
        self._say("data", "%s: the data does not fit its schema; %s", self.policy.name, told)

    # ---------------------------------------------------------------------------------------------- training

    def _train(self, letter: wire.Letter) -> bytes:
        coordinator = letter.sender.ledger
        run, number, attempt = self._key(letter)
        if letter.digest in self._refusals:
            raise Refused("this request was refused before")
        known = self._runs.get((run, coordinator))
        if (known is None or known.answered is None) and self.books.answered(run, coordinator, number, attempt):
            return self._came_again(letter, run, number, attempt)
        enrolled = self._enrolled(run, coordinator)
        resolved = enrolled.resolved
        self._check_request(letter, resolved, number)
        if resolved.secure is not None:
            raise Refused("the plan asks for secure aggregation, so no update leaves this site unmasked", for_good=True)
        params = self._model_in(letter, resolved)
        model = hashlib.sha256(params.tobytes()).hexdigest()
        if enrolled.answered is not None and enrolled.answered[0] == (number, attempt, model):
            return enrolled.answered[1]
        if self.books.answered(run, coordinator, number, attempt):
            return self._came_again(letter, run, number, attempt)
        reserved = self._reserve(letter, enrolled)
        if reserved is None:
            return self._reply(letter, "lost", {"reason": AGAIN})
        receipt, charges = reserved
        reach("party:reserved")
        try:
            delta = self._site(enrolled).answer((run, number, attempt, model), params)
        except (
            Exception,
            SystemExit,
        ) as error:  # nothing was promised: charged, and told by its kind
            log.warning("round %d of %s failed: %s", number, run, type(error).__name__)
            return self._reply(letter, "lost", {"reason": kind_of(error)})
        if not self._commit(receipt):
            return self._reply(letter, "lost", {"reason": "its ledger could not be written"})
        body = {"round": number, "attempt": attempt, "charges": [charge.to_dict() for charge in charges]}
        reply = self._reply(letter, "update", body, delta)
        enrolled.answered = (number, attempt, model), reply
        log.info("round %d, attempt %d of %s: charged, and the update leaves", number, attempt, run)
        reach("party:before-reply")
        return reply

    def _check_request(self, letter: wire.Letter, resolved: ResolvedPlan, number: int) -> None:
        """It is about the plan that this site has enrolled with, and one of its rounds."""
        if letter.body.get("plan") != resolved.plan.digest:
            problem = "the request belongs to another plan than the one that this site has enrolled with"
            raise Refused(problem, for_good=True)
        if number > resolved.plan.federation.rounds:
            problem = f"the plan has {resolved.plan.federation.rounds} rounds, this is round {number}"
            raise Refused(problem, for_good=True)

    def _model_in(self, letter: wire.Letter, resolved: ResolvedPlan) -> np.ndarray[Any, np.dtype[np.float64]]:
        params = letter.vector
        if params is None or params.shape != (resolved.dimension,) or not np.isfinite(params).all():
            problem = f"the model that came is not {resolved.dimension} finite numbers"
            raise Refused(problem, for_good=True)
        return params

    def _reserve(self, letter: wire.Letter, enrolled: Enrolled) -> tuple[Receipt, tuple[Charge, ...]] | None:
        """Ask policy and books once more, and reserve on disk; None where another process of this site was quicker."""
        (run, number, attempt), resolved = self._key(letter), enrolled.resolved
        allowed(lambda: self.policy.check(resolved))
        booked(run, self.books.check_lifetimes)
        self._look(enrolled)
        try:
            reach("party:before-reserve")
            found = self.books.reserve(run, resolved, number, attempt, letter.sender)
        except BudgetExhausted as error:
            log.warning("%s: %s", run, error)
            raise Refused("its budget is spent") from None
        except PlanRefused as error:
            log.warning("%s: %s", run, error)
            raise Refused(NOT_BOOKED) from None
        except CorruptState as error:  # about the coordinator's own ledger
            raise Refused(str(error)) from None
        except InvalidParameter as error:  # another process of this site has just reserved the same attempt
            log.warning("round %d, attempt %d of %s: %s", number, attempt, run, error)
            return None
        except (LedgerBroken, StoreFailed):
            raise
        except QuietsumError as error:  # whatever the books object to: nothing was reserved
            log.warning("%s: %s", run, error)
            raise Refused(NOT_BOOKED) from None
        reach("party:reserved")
        return found

    def _commit(self, receipt: Receipt) -> bool:
        """Whether the charge is on disk, so that what was made may leave."""
        reach("party:before-commit")
        try:
            self._ledger.commit(receipt)
        except Exception as error:
            log.error("the update stays here, since its charge could not be committed: %s", error)
            return False
        if self._alerts is not None:
            self._alerts.charged()
        reach("party:committed")
        return True

    # ------------------------------------------------------------------------------------- secure aggregation

    def _secure(self, letter: wire.Letter) -> bytes:
        """One step of a secure round. What this site adds leaves masked, and only what its own plan and policy allow.

        Until the step of masked inputs no data is touched, so whatever is wrong is a refusal, and written down; from
        then on nothing is refused any more, only not answered.
        """
        (run, number, attempt), coordinator = self._key(letter), letter.sender.ledger
        if letter.digest in self._refusals:
            raise Refused("this request was refused before")
        step = _STEPS.get(str(letter.body.get("step")))
        if step is None or not letter.payload:
            raise Refused("the message is no step of secure aggregation", for_good=True)
        enrolled = self._enrolled(run, coordinator)
        self._check_request(letter, enrolled.resolved, number)
        if enrolled.resolved.secure is None:
            raise Refused("the plan does not ask for secure aggregation", for_good=True)
        party, key = self._masking(enrolled), (run, number, attempt)
        try:
            if party.touches(key, step) or step is Step.OPEN:
                if self.books.answered(run, coordinator, number, attempt):
                    return self._came_again(letter, run, number, attempt)
                if step is Step.SHARES:
                    return self._mask(letter, enrolled, party)
                content = self._open(letter, enrolled, party)
            else:
                content = party.answer(key, step, letter.payload)
        except Unwilling as refusal:
            if step.turn <= Step.ROSTER.turn:
                raise Refused(str(refusal)) from None
            log.warning("round %d, attempt %d of %s: %s", number, attempt, run, refusal)
            return self._reply(letter, "lost", {"reason": str(refusal)})
        reach(f"party:{step.name.lower()}")
        return self._secured(letter, enrolled, step, content)

    def _masking(self, enrolled: Enrolled) -> SecureSite:
        """This site in the secure rounds of a run, with what its own policy insists on."""
        if enrolled.masking is None:
            rules = self.policy.rules

            def made(key: Key, params: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
                how = contribution_of(enrolled.resolved, key[1])
                return self._site(enrolled).contribution((*key, model_hash(params)), params, how)

            strict = rules.adversary == Adversary.SEMI_MALICIOUS
            enrolled.masking = SecureSite(
                self.policy.name,
                identity=identity_of(self._ledger),
                contribute=made,
                policy=Insists(
                    threshold=max(1, rules.smallest_threshold),
                    floor=max(1, rules.smallest_cohort),
                    adversaries=frozenset({Adversary.SEMI_MALICIOUS} if strict else Adversary),
                ),
            )
        return enrolled.masking

    def _open(self, letter: wire.Letter, enrolled: Enrolled, party: SecureSite) -> bytes:
        """Begin a session: the plan and the books allow it, and everybody in it is who this site knows."""
        (run, number, attempt), body = self._key(letter), letter.body
        allowed(lambda: self.policy.check(enrolled.resolved))
        booked(run, self.books.check_lifetimes)
        self._look(enrolled)
        model, server = _digest(body, "model"), bytes.fromhex(_digest(body, "server"))
        pinned = self.policy.rules.peers
        try:
            peers = peers_of(body.get("peers"), run=run, own=self.policy.name, pinned=pinned, known=enrolled.peers)
        except UnknownPeer as error:
            raise Refused(str(error)) from None
        terms = terms_of(enrolled.resolved, (run, number, attempt), model)
        return party.open(
            terms, letter.payload, server=server, peers=peers, draw=lambda: self._draw(letter, enrolled.resolved)
        )

    def _draw(self, letter: wire.Letter, resolved: ResolvedPlan) -> None:
        """Count a session with groups on disk, before anything of it leaves."""
        run = self._run_of(letter)
        try:
            self.books.draw(run, resolved, letter.sender)
        except PlanRefused as error:
            self._say(f"draws of {letter.sender.ledger}", "%s: %s", run, error)
            raise Unwilling(Reason.TOO_MANY_DRAWS) from None

    def _mask(self, letter: wire.Letter, enrolled: Enrolled, party: SecureSite) -> bytes:
        """Reserve, touch the data, mask, commit; in this order the vector leaves."""
        (run, number, attempt), resolved = self._key(letter), enrolled.resolved
        params = self._model_in(letter, resolved)
        if not party.holds(model_hash(params)):
            raise Refused("the model that came is not the one of this session", for_good=True)
        reserved = self._reserve(letter, enrolled)
        if reserved is None:
            return self._reply(letter, "lost", {"reason": AGAIN})
        receipt, enrolled.charges = reserved
        try:
            content = party.answer((run, number, attempt), Step.SHARES, letter.payload, params)
        except Unwilling:
            raise
        except (Exception, SystemExit) as error:  # nothing was promised: charged, and told by its kind
            log.warning("round %d of %s failed: %s", number, run, type(error).__name__)
            return self._reply(letter, "lost", {"reason": kind_of(error)})
        if not self._commit(receipt):
            party.stop()
            return self._reply(letter, "lost", {"reason": "its ledger could not be written"})
        log.info("round %d, attempt %d of %s: charged, and the masked update leaves", number, attempt, run)
        reply = self._secured(letter, enrolled, Step.SHARES, content)
        reach("party:before-reply")
        return reply

    def _secured(self, letter: wire.Letter, enrolled: Enrolled, step: Step, content: bytes) -> bytes:
        _, number, attempt = self._key(letter)
        body: dict[str, Any] = {"round": number, "attempt": attempt, "step": step.name.lower()}
        if step is Step.SHARES:
            body["charges"] = [charge.to_dict() for charge in enrolled.charges]
        return self._written("secured", body, letter, payload=content)

    def _look(self, enrolled: Enrolled) -> None:
        """Say that there are no files, while nothing is reserved: later it would be a message about records."""
        try:
            look_for_data(enrolled.task, self.policy.name)
        except NotTouched as error:
            raise Refused(str(error)) from None

    def _came_again(self, letter: wire.Letter, run: str, number: int, attempt: int) -> bytes:
        log.warning("round %d, attempt %d of %s came again, and is answered once", number, attempt, run)
        return self._reply(letter, "lost", {"reason": AGAIN})

    def _enrolled(self, run: str, coordinator: str) -> Enrolled:
        """The run as this process knows it; after a restart, as the ledger does."""
        found = self._runs.get((run, coordinator))
        if found is not None:
            return found
        if not self.books.knows(run, coordinator):
            raise Refused("the site has not enrolled in this run")
        resolved = booked(run, lambda: self.books.resolved(run, coordinator))
        booked(run, lambda: self.books.check_booked(run, resolved, coordinator))
        found = allowed(lambda: self._begin(resolved))
        self._runs[run, coordinator] = self._remembering(run, coordinator, found)
        return found

    def _remembering(self, run: str, coordinator: str, enrolled: Enrolled) -> Enrolled:
        """``enrolled`` with the peers it knew, which no farewell makes undone."""
        enrolled.peers = self._met.setdefault((run, coordinator), enrolled.peers)
        return enrolled

    def _farewell(self, letter: wire.Letter) -> bytes:
        run = self._run_of(letter)
        if self.books.knows(run, letter.sender.ledger):
            with contextlib.suppress(PlanRefused):  # so many heads were kept that this one is not
                self.books.note(run, letter.sender)
        gone = self._runs.pop((run, letter.sender.ledger), None)
        if gone is not None and self._alerts is not None:
            self._alerts.ended(run)
        if gone is not None and gone.masking is not None:
            gone.masking.stop()
        return self._reply(letter, "noted", {})

    # ---------------------------------------------------------------------------------------------- small things

    @staticmethod
    def _run_of(letter: wire.Letter) -> str:
        try:
            run = label("run", letter.body.get("run"))
            name_in_books(run, letter.sender.ledger)  # which is longer
            return run
        except InvalidParameter:
            raise Refused("the message names no run") from None

    def _reply(
        self, letter: wire.Letter, kind: str, body: Mapping[str, Any], vector: np.ndarray[Any, Any] | None = None
    ) -> bytes:
        return self._written(kind, body, letter, vector)

    def _written(
        self,
        kind: str,
        body: Mapping[str, Any],
        letter: wire.Letter | None = None,
        vector: np.ndarray[Any, Any] | None = None,
        payload: bytes = b"",
    ) -> bytes:
        knows = None if letter is None else self.books.last_seen(letter.sender.ledger)
        answers = "" if letter is None else letter.digest
        return wire.write_letter(
            kind, body, self._ledger, knows=knows, answers=answers, vector=vector, payload=payload
        )[0]


def _digest(body: Mapping[str, Any], name: str) -> str:
    """32 bytes in hexadecimal, which a message names."""
    value = body.get(name)
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise Refused(f"the message names no {name}", for_good=True)
    return value
