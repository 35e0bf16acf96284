"""A site at work: it checks a request against its policy and its own books, and only then touches its data.

:meth:`SiteService.answer` takes bytes and returns bytes, so any carrier will do. The order is fixed: is the letter
whole and signed; is it from the coordinator that this site works for; are both ledgers still what they were; does the
policy allow the plan; does it fit the site's own books; is the request new. Then the charge is reserved on disk, then
data is touched, then the charge is committed on disk, then the update leaves. Nothing that arrives is ever executed.
If the plan asks for secure aggregation, the update leaves masked, at the third of five steps, and the other steps touch
no data (:mod:`quietsum.party.secure`).
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
from quietsum.ledger import Clock, Ledger, StoreFailed, check_succession, system_clock
from quietsum.mechanisms import system_randomness
from quietsum.party.books import SiteBooks, name_in_books, read_resolved, write_resolved
from quietsum.party.data import DataCheck
from quietsum.party.peers import UnknownPeer, certificate, identity_of, peers_of
from quietsum.party.questions import is_question
from quietsum.party.requests import (
    AGAIN,
    NOT_BOOKED,
    NOT_WRITTEN,
    RequestRefused,
    check_request,
    describe_failure,
    read_hash,
    read_key,
    read_params,
    read_run,
    refuse_on,
    refuse_privately,
)
from quietsum.party.secure import AttemptKey, SecureSite, contribution_of, terms_of
from quietsum.party.site_task import SiteRun, make_task, own_canaries, try_task
from quietsum.party.work import NotTouched, Site, look_for_data, model_hash
from quietsum.secagg import DRAWING, Adversary, Demands, Reason, Refused as Unwilling, Step

if TYPE_CHECKING:
    from pathlib import Path

    from quietsum.ledger import Charge, Receipt
    from quietsum.mechanisms import RandomSource
    from quietsum.party.alerting import SiteAlerts
    from quietsum.party.policy import Policy
    from quietsum.plan import Plan, ResolvedPlan
    from quietsum.tasks import AnyTask

__all__ = ["LogOnce", "SiteService"]

log = logging.getLogger(__name__)

NodeSigns = Callable[[bytes], bytes]
"""Signs with the site's node key, by which the coordinator knows it."""
Model = np.ndarray[Any, np.dtype[np.float64]]

MOST_REFUSALS = 10_000
"""So many refused requests are remembered; one that arrives again is refused again."""
_MOST_LOGGED = 1000
_LEDGER = "own ledger, for"
_STEPS = {
    step.name.lower(): step for step in (Step.OPEN, *DRAWING, Step.ROSTER, Step.SHARES, Step.SURVIVORS, Step.AGREED)
}


@final
class LogOnce:
    """Remembers the last message about each subject, so that a repeated message is logged once.

    A site that refuses is greeted again every second; a log that repeats itself hides the next problem.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def is_new(self, about: str, words: str) -> bool:
        """Whether ``words`` differ from the last message about the subject; they are remembered."""
        if self._last.get(about) == words:
            return False
        if about not in self._last and len(self._last) >= _MOST_LOGGED:  # names come from outside
            self._last.pop(next(iter(self._last)))
        self._last[about] = words
        return True

    def clear(self, about: str) -> bool:
        """Whether there was a message about the subject; it is forgotten."""
        return self._last.pop(about, None) is not None


@final
class SiteService:
    """One site.

    Guarantees: data is touched only for a plan that the policy allows, after its charge is on disk in the site's own
    ledger, and nothing leaves before that charge is committed there. A request is known by (run, round, attempt, hash
    of the model): delivered twice, it gets the same bytes or none (rule 10). Events are reported, no ε. No message
    makes :meth:`answer` raise. If the plan promises anything, a failure shows in the site's own log only: what leaves,
    and is charged, is the plan's steps on no rows (rule 17).
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        *,
        node_key: NodeSigns | None = None,
        rng: RandomSource | None = None,
        task: Callable[[Plan], AnyTask] | None = None,
        clock: Callable[[], float] = time.monotonic,
        interruptible: bool = True,
        alerts: SiteAlerts | None = None,
        now: Clock = system_clock,
        canaries: Path | None = None,
    ) -> None:
        """``interruptible``: a KeyboardInterrupt is the owner's; otherwise it counts as a failure of the task.

        ``alerts`` are the site operator's, none if omitted. ``now`` is the time of day, by which the ε of a day's
        questions is counted. ``canaries`` is the folder of what audits need; without it plans with canaries are
        refused.
        """
        self._interruptible, self._alerts, self._canaries = interruptible, alerts, canaries
        self.policy, self.books = policy, SiteBooks(policy, ledger, clock=now)
        self._ledger, self._node_key, self._clock = ledger, node_key, clock
        self._rng, self._task = rng or system_randomness(), task or (lambda plan: make_task(policy, plan))
        self._runs: dict[tuple[str, str], SiteRun] = {}
        self._met: dict[tuple[str, str], dict[str, str]] = {}  # peers, past a farewell
        self._session = secrets.token_hex(8)
        self._refusals: collections.deque[str] = collections.deque(maxlen=MOST_REFUSALS)
        self._logged = LogOnce()
        self._data = None if policy.data is None else DataCheck(policy)
        self.books.protect()

    def answer(self, content: bytes) -> bytes:
        """Returns the reply to one letter, readable or not; empty bytes if not even a refusal can be signed."""
        try:
            reply = self._reply_to(content)
        except Exception:
            log.exception("a message could not even be refused")
            reply = b""
        if self._alerts is not None:  # what was charged is committed by now
            self._alerts.look()
        return reply

    def _reply_to(self, content: bytes) -> bytes:
        try:
            letter = wire.read_letter(content, most=self.policy.rules.largest_message)
        except wire.UnreadableLetter as error:
            self._log_once("unread", "a message was left unread: %s", error)
            return self._write("unreadable", {"reason": str(error)})
        try:
            return self._dispatch(letter)
        except RequestRefused as refusal:
            words = f"{letter.kind[:40]!r} refused: {refusal}" + (f" ({refusal.aside})" if refusal.aside else "")
            about = f"{letter.kind[:40]} of {letter.sender.ledger}"
            if self._log_once(about, "%s", words) and self._alerts is not None:
                run = str(letter.body.get("run") or "")[:100]
                (self._alerts.note_spent_budget if refusal.spent else self._alerts.note_refusal)(words, run=run)
            return self._refuse(letter, str(refusal), for_good=refusal.for_good)
        except LedgerBroken as error:
            words = f"nothing is done any more until the ledger is in order: {error}"
            about = f"{_LEDGER} {letter.sender.ledger}"
            if self._log_once(about, "%s", words, level=logging.ERROR) and self._alerts is not None:
                self._alerts.note_broken_ledger(str(error))
            return self._refuse(letter, "its own ledger is not in order")
        except StoreFailed as error:
            words = f"refused, since the ledger takes no entry: {error}"
            self._log_once(f"{_LEDGER} {letter.sender.ledger}", "%s", words, level=logging.ERROR)
            return self._refuse(letter, NOT_WRITTEN)
        except Exception as error:  # a fault of quietsum's, whose words may quote a row
            log.exception("a %s could not be answered", letter.kind)
            return self._lose(letter, describe_failure(error))

    def _dispatch(self, letter: wire.Letter) -> bytes:
        if wire.holds_huge_number(letter.body):
            raise RequestRefused(wire.HUGE_NUMBER, for_good=True)
        self._check_coordinator(letter)
        if letter.knows is not None and self._logged.clear(f"{_LEDGER} {letter.sender.ledger}"):
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
        raise RequestRefused(f"a message of kind {letter.kind[:40]!r} is unknown here")

    def _write(
        self,
        kind: str,
        body: Mapping[str, Any],
        letter: wire.Letter | None = None,
        vector: Model | None = None,
        payload: bytes = b"",
    ) -> bytes:
        """A signed letter in reply to ``letter``."""
        knows = None if letter is None else self.books.last_seen(letter.sender.ledger)
        answers = "" if letter is None else letter.digest
        ledger = self._ledger
        return wire.write_letter(kind, body, ledger, knows=knows, answers=answers, vector=vector, payload=payload)[0]

    def _lose(self, letter: wire.Letter, reason: str) -> bytes:
        """Reply that nothing comes, while data may have been touched: the coordinator keeps its charge."""
        return self._write("lost", {"reason": reason}, letter)

    def _lose_repeated(self, letter: wire.Letter) -> bytes:
        run, number, attempt = read_key(letter)
        log.warning("round %d, attempt %d of %s came again, and is answered once", number, attempt, run)
        return self._lose(letter, AGAIN)

    def _refuse(self, letter: wire.Letter, reason: str, *, for_good: bool = False) -> bytes:
        """Refuse, unless the attempt was reserved before: then data may have been touched, and it is lost.

        A refusal is written down: the coordinator may take the charge back, so the attempt is never answered later.
        """
        if letter.kind in ("train", "secure"):
            if self._was_reserved(letter):
                return self._lose(letter, AGAIN)
            if not for_good:  # a policy may be changed, a budget raised, a disk emptied
                self._refusals.append(letter.digest)
                if not self._record_refusal(letter):
                    return self._lose(letter, reason)
        return self._write("refused", {"reason": reason}, letter)

    def _was_reserved(self, letter: wire.Letter) -> bool:
        """Whether the books hold a reservation for this attempt; True if they cannot be read."""
        try:
            run, number, attempt = read_key(letter)
        except RequestRefused:
            return False
        try:
            return self.books.is_reserved(run, letter.sender.ledger, number, attempt)
        except Exception:
            log.exception("the books do not say whether this attempt was reserved")
            return True

    def _record_refusal(self, letter: wire.Letter) -> bool:
        """Whether the refusal is on disk; else a later process might answer what the coordinator has taken back."""
        try:
            run, number, attempt = read_key(letter)
        except RequestRefused:
            return True  # it can never be answered
        try:
            self.books.refuse(run, number, attempt, letter.sender)
        except QuietsumError as error:
            about = f"refusal of {letter.sender.ledger}"
            self._log_once(about, "the refusal was not written down, so the request counts as lost: %s", error)
            return False
        return True

    def _log_once(self, about: str, words: str, *values: object, level: int = logging.WARNING) -> bool:
        """Log it, at DEBUG if it was the last message about the subject already; whether it was not."""
        is_new = self._logged.is_new(about, words % values)
        log.log(level if is_new else logging.DEBUG, words, *values)
        return is_new

    # ----------------------------------------------------------------------------------------- the coordinator

    def _check_coordinator(self, letter: wire.Letter) -> None:
        """It is the one coordinator of this site, and neither ledger has gone back behind a head the other has kept."""
        if letter.to != self.policy.name and (letter.kind != "hello" or letter.to):
            raise RequestRefused("the message is for another site", for_good=True)
        sender, pinned = letter.sender.ledger, self.policy.coordinator.ledger
        known = (pinned,) if pinned else self.books.coordinators()
        if known and sender not in known:
            raise RequestRefused(
                f"it works for another coordinator than the one whose ledger is {sender}; the site's policy names it "
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
                    remedy="restore the newest copy, and do not serve until then",
                )
        if letter.kind != "hello":  # a greeting may have been overtaken by a letter that was sent after it
            with refuse_on(CorruptState):
                last = self.books.last_seen_in(read_run(letter), sender)
                check_succession("the coordinator", last, letter.sender)

    def _hello(self, letter: wire.Letter) -> bytes:
        body = {"party": self.policy.name, "session": self._session, "signature": ""}
        if self._node_key is not None:
            message = wire.node_statement(letter.digest, self.policy.name, self._ledger.identity.public_key)
            body["signature"] = self._node_key(message).hex()
        return self._write("here", body, letter)

    # --------------------------------------------------------------------------------------------- enrolling

    def _enrol(self, letter: wire.Letter) -> bytes:
        run, coordinator = read_run(letter), letter.sender.ledger
        with refuse_on(PlanRefused):
            resolved = read_resolved(letter.body.get("resolved", {}))
        with refuse_on(QuietsumError):  # no data was touched yet, so everything wrong with the plan is a refusal
            self._check_same_plan(run, resolved, coordinator)
            place = self._begin(resolved)
            with refuse_privately(run):
                place.canaries = own_canaries(self._canaries, name_in_books(run, coordinator), resolved, self._rng)
            with refuse_privately(run):
                self.books.enrol(run, resolved, letter.sender)
                self.books.check_booked(run, resolved, coordinator)  # it may have enrolled under another policy
        self._restore_peers(run, coordinator, place)
        self._runs.setdefault((run, coordinator), place)  # only what the books hold, and never another plan
        if self._alerts is not None:
            self._alerts.note_charge()
        log.info("enrolled in %s: task %s", run, resolved.plan.task.name)
        reach("party:before-enrolled-reply")
        charges = self.books.list_enrolment_charges(run, resolved, coordinator)
        body: dict[str, Any] = {"plan": resolved.plan.digest, "charges": charges}
        if resolved.secure is not None:
            own = self._ledger.identity.public_key
            body["identity"] = certificate(self._ledger, own, self.policy.name, identity_of(self._ledger))
        return self._write("enrolled", body, letter)

    def _check_same_plan(self, run: str, resolved: ResolvedPlan, coordinator: str) -> None:
        """A run has one plan, to the last digit of its noise."""
        if self.books.knows(run, coordinator):
            with refuse_privately(run):
                known = self.books.find_plan(run, coordinator)
            if write_resolved(known) != write_resolved(resolved):
                raise RequestRefused("the site has enrolled in this run with another plan")

    def _begin(self, resolved: ResolvedPlan) -> SiteRun:
        """Ask the policy, make the task and try it on made-up records; nothing is charged yet, so no record is read."""
        self.policy.check(resolved)
        with refuse_privately(resolved.plan.task.name):
            self.books.check_lifetimes()
        name, protected = self.policy.name, not self.policy.dataset.public
        task = try_task(
            lambda: self._task(resolved.plan), resolved, name, unseen=protected, interruptible=self._interruptible
        )
        data = self._data_check_of(resolved)
        if data is not None:
            data.check_task(task)
        check = None if data is None else lambda: data.before_training(task, name, self._log_unfit_data)
        place = SiteRun(resolved, task, name, due=protected, check=check)
        self._check_files(place)
        return place

    def _find_run(self, run: str, coordinator: str) -> SiteRun:
        """The run as this process knows it; after a restart, as the ledger does."""
        known = self._runs.get((run, coordinator))
        if known is not None:
            return known
        if not self.books.knows(run, coordinator):
            raise RequestRefused("the site has not enrolled in this run")
        with refuse_privately(run):
            resolved = self.books.find_plan(run, coordinator)
            self.books.check_booked(run, resolved, coordinator)
        with refuse_on(PlanRefused):
            place = self._begin(resolved)
            with refuse_privately(run):
                place.canaries = own_canaries(self._canaries, name_in_books(run, coordinator), resolved, self._rng)
        self._restore_peers(run, coordinator, place)
        self._runs[run, coordinator] = place
        return place

    def _restore_peers(self, run: str, coordinator: str, place: SiteRun) -> None:
        """Give ``place`` the peers that this run has shown before; a farewell does not undo them."""
        place.peers = self._met.setdefault((run, coordinator), place.peers)

    def _farewell(self, letter: wire.Letter) -> bytes:
        run, coordinator = read_run(letter), letter.sender.ledger
        if self.books.knows(run, coordinator):
            with contextlib.suppress(PlanRefused):  # so many heads were kept that this one is not
                self.books.note(run, letter.sender)
        place = self._runs.pop((run, coordinator), None)
        if place is not None and self._alerts is not None:
            self._alerts.note_end(run)
        if place is not None and place.masking is not None:
            place.masking.stop()
        return self._write("noted", {}, letter)

    # ------------------------------------------------------------------------------------ the task and its data

    def _make_site(self, place: SiteRun) -> Site:
        """A :class:`Site` for one answer; the books know which attempts were answered before."""
        limit = place.resolved.plan.federation.deadline
        return Site(
            self.policy.name,
            task=place.task,
            resolved=place.resolved,
            rng=self._rng,
            deadline=math.inf if limit is None else limit,
            clock=self._clock,
            first=place.prepare,
            interruptible=self._interruptible,
            tell=self._log_failed_work,
            canaries=place.canaries,
        )

    def _data_check_of(self, resolved: ResolvedPlan) -> DataCheck | None:
        """The check of the records that a plan reads; None for questions.

        Questions bring each value to the declared bounds and categories by themselves. If one record could make the
        whole table unfit, it would move a count by all records, which a reader sees at once.
        """
        return None if is_question(resolved) else self._data

    def _check_files(self, place: SiteRun) -> None:
        """Refuse if there are no files, while nothing is reserved: later that would be a message about records."""
        with refuse_on(NotTouched):
            look_for_data(place.task, self.policy.name)

    def _log_failed_work(self, name: str, words: str) -> None:
        """For the site's owner alone."""
        self._log_once(
            "work", "%s: its work failed, so what leaves holds nothing of its data, and is charged: %s", name, words
        )

    def _log_unfit_data(self, words: str) -> None:
        """For the site's owner alone."""
        self._log_once("data", "%s: the data does not fit its schema; %s", self.policy.name, words)

    # ---------------------------------------------------------------------------------------------- the charge

    def _reserve(self, letter: wire.Letter, place: SiteRun) -> tuple[Receipt, tuple[Charge, ...]] | None:
        """Ask policy and books once more, and reserve on disk; None if another process of this site was quicker."""
        (run, number, attempt), resolved = read_key(letter), place.resolved
        self._check_again(run, place)
        try:
            reach("party:before-reserve")
            reserved = self.books.reserve(run, resolved, number, attempt, letter.sender)
        except (LedgerBroken, StoreFailed):
            raise
        except CorruptState as error:  # about the coordinator's own ledger
            raise RequestRefused(str(error)) from None
        except InvalidParameter as error:  # another process of this site has just reserved the same attempt
            log.warning("round %d, attempt %d of %s: %s", number, attempt, run, error)
            return None
        except BudgetExhausted as error:
            log.warning("%s: %s", run, error)
            raise RequestRefused("its budget is spent", spent=True) from None
        except QuietsumError as error:  # any other objection of the books: nothing was reserved
            log.warning("%s: %s", run, error)
            raise RequestRefused(NOT_BOOKED) from None
        reach("party:reserved")
        return reserved

    def _check_again(self, run: str, place: SiteRun) -> None:
        """The policy, the lifetimes and the files may have changed since the site enrolled."""
        with refuse_on(PlanRefused):
            self.policy.check(place.resolved)
        with refuse_privately(run):
            self.books.check_lifetimes()
        self._check_files(place)

    def _commit(self, receipt: Receipt) -> bool:
        """Whether the charge is on disk, so that the update may leave."""
        reach("party:before-commit")
        try:
            self._ledger.commit(receipt)
        except Exception as error:
            log.error("the update stays here, since its charge could not be committed: %s", error)
            return False
        if self._alerts is not None:
            self._alerts.note_charge()
        reach("party:committed")
        return True

    # ----------------------------------------------------------------------------------------- ordinary rounds

    def _train(self, letter: wire.Letter) -> bytes:
        """Reserve, touch the data, commit; in this order the update leaves."""
        (run, number, attempt), coordinator = read_key(letter), letter.sender.ledger
        if letter.digest in self._refusals:
            raise RequestRefused("this request was refused before")
        known = self._runs.get((run, coordinator))
        if (known is None or known.answered is None) and self.books.is_answered(run, coordinator, number, attempt):
            return self._lose_repeated(letter)
        place = self._find_run(run, coordinator)
        check_request(letter, place.resolved, number)
        if place.resolved.secure is not None:
            problem = "the plan asks for secure aggregation, so no update leaves this site unmasked"
            raise RequestRefused(problem, for_good=True)
        params = read_params(letter, place.resolved)
        model = hashlib.sha256(params.tobytes()).hexdigest()
        if place.answered is not None and place.answered[0] == (number, attempt, model):
            return place.answered[1]
        if self.books.is_answered(run, coordinator, number, attempt):
            return self._lose_repeated(letter)
        reserved = self._reserve(letter, place)
        if reserved is None:
            return self._lose(letter, AGAIN)
        receipt, charges = reserved
        reach("party:reserved")
        try:
            delta = self._make_site(place).answer((run, number, attempt, model), params)
        except (Exception, SystemExit) as error:  # only if nothing is promised; charged all the same
            log.warning("round %d of %s failed: %s", number, run, type(error).__name__)
            return self._lose(letter, describe_failure(error))
        if not self._commit(receipt):
            return self._lose(letter, NOT_WRITTEN)
        body = {"round": number, "attempt": attempt, "charges": [charge.to_dict() for charge in charges]}
        reply = self._write("update", body, letter, delta)
        place.answered = (number, attempt, model), reply
        log.info("round %d, attempt %d of %s: charged, and the update leaves", number, attempt, run)
        reach("party:before-reply")
        return reply

    # ------------------------------------------------------------------------------------------- secure rounds

    def _secure(self, letter: wire.Letter) -> bytes:
        """One step of a secure round. What this site adds leaves masked, and only what its own plan and policy allow.

        Until the step of masked inputs no data is touched, so everything wrong is a refusal, and written down; from
        then on a request is not refused any more, only not answered.
        """
        (run, number, attempt), coordinator = key, _ = read_key(letter), letter.sender.ledger
        if letter.digest in self._refusals:
            raise RequestRefused("this request was refused before")
        step = _STEPS.get(str(letter.body.get("step")))
        if step is None or not letter.payload:
            raise RequestRefused("the message is no step of secure aggregation", for_good=True)
        place = self._find_run(run, coordinator)
        check_request(letter, place.resolved, number)
        if place.resolved.secure is None:
            raise RequestRefused("the plan does not ask for secure aggregation", for_good=True)
        party = self._secure_site(place)
        try:
            if party.touches(key, step) or step is Step.OPEN:
                if self.books.is_answered(run, coordinator, number, attempt):
                    return self._lose_repeated(letter)
                if step is Step.SHARES:
                    return self._mask(letter, place, party)
                content = self._open_session(letter, place, party)
            else:
                content = party.answer(key, step, letter.payload)
        except Unwilling as refusal:
            if step.turn <= Step.ROSTER.turn:
                raise RequestRefused(str(refusal)) from None
            log.warning("round %d, attempt %d of %s: %s", number, attempt, run, refusal)
            return self._lose(letter, str(refusal))
        reach(f"party:{step.name.lower()}")
        return self._write_step(letter, place, step, content)

    def _secure_site(self, place: SiteRun) -> SecureSite:
        """This site in the secure rounds of a run, with the conditions of its own policy."""
        if place.masking is None:
            rules = self.policy.rules

            def contribute(key: AttemptKey, params: Model) -> np.ndarray[Any, np.dtype[np.uint32]]:
                how = contribution_of(place.resolved, key[1])
                return self._make_site(place).contribution((*key, model_hash(params)), params, how)

            strict = rules.adversary == Adversary.SEMI_MALICIOUS
            place.masking = SecureSite(
                self.policy.name,
                identity=identity_of(self._ledger),
                contribute=contribute,
                policy=Demands(
                    threshold=max(1, rules.smallest_threshold),
                    floor=max(1, rules.smallest_cohort),
                    adversaries=frozenset({Adversary.SEMI_MALICIOUS} if strict else Adversary),
                ),
            )
        return place.masking

    def _open_session(self, letter: wire.Letter, place: SiteRun, party: SecureSite) -> bytes:
        """Begin a session: the plan and the books allow it, and this site knows everyone in the cohort."""
        key = run, _, _ = read_key(letter)
        self._check_again(run, place)
        model, server = read_hash(letter, "model"), bytes.fromhex(read_hash(letter, "server"))
        with refuse_on(UnknownPeer):
            peers = peers_of(
                letter.body.get("peers"),
                run=run,
                own=self.policy.name,
                pinned=self.policy.rules.peers,
                known=place.peers,
            )
        terms = terms_of(place.resolved, key, model)
        return party.open(
            terms, letter.payload, server=server, peers=peers, draw=lambda: self._draw(letter, place.resolved)
        )

    def _draw(self, letter: wire.Letter, resolved: ResolvedPlan) -> None:
        """Count a session with groups on disk, before anything of it leaves."""
        run = read_run(letter)
        try:
            self.books.draw(run, resolved, letter.sender)
        except PlanRefused as error:
            self._log_once(f"draws of {letter.sender.ledger}", "%s: %s", run, error)
            raise Unwilling(Reason.TOO_MANY_DRAWS) from None

    def _mask(self, letter: wire.Letter, place: SiteRun, party: SecureSite) -> bytes:
        """Reserve, touch the data, mask, commit; in this order the vector leaves."""
        key = run, number, attempt = read_key(letter)
        params = read_params(letter, place.resolved)
        if not party.holds(model_hash(params)):
            raise RequestRefused("the model that came is not the one of this session", for_good=True)
        reserved = self._reserve(letter, place)
        if reserved is None:
            return self._lose(letter, AGAIN)
        receipt, place.charges = reserved
        try:
            content = party.answer(key, Step.SHARES, letter.payload, params)
        except Unwilling:
            raise
        except (Exception, SystemExit) as error:  # only if nothing is promised; charged all the same
            log.warning("round %d of %s failed: %s", number, run, type(error).__name__)
            return self._lose(letter, describe_failure(error))
        if not self._commit(receipt):
            party.stop()
            return self._lose(letter, NOT_WRITTEN)
        log.info("round %d, attempt %d of %s: charged, and the masked update leaves", number, attempt, run)
        reply = self._write_step(letter, place, Step.SHARES, content)
        reach("party:before-reply")
        return reply

    def _write_step(self, letter: wire.Letter, place: SiteRun, step: Step, content: bytes) -> bytes:
        _, number, attempt = read_key(letter)
        body: dict[str, Any] = {"round": number, "attempt": attempt, "step": step.name.lower()}
        if step is Step.SHARES:
            body["charges"] = [charge.to_dict() for charge in place.charges]
        return self._write("secured", body, letter, payload=content)
