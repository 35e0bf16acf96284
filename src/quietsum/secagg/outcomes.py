"""How a session of secure aggregation can end, and why a message or a party is left out: two closed lists.

A :class:`Reason` says why one message was refused, or why one party is not in the sum; a :class:`SessionOutcome` says
how the whole session ended. Each has one plain sentence. Neither machine raises anything else: on any bytes, a party
raises :class:`Refused` with a reason, and the server returns a reason or ends in an outcome.
"""

from __future__ import annotations

import enum
from typing import Any, final

from quietsum.errors import QuietsumError

__all__ = ["Reason", "Refused", "SessionOutcome"]


@final
class Reason(enum.Enum):
    """Why a message was refused, or why a party was lost."""

    # bytes that are no message of this session; the session goes on as if they had not come
    TRUNCATED = "truncated"
    OVERSIZE = "oversize"
    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad-signature"
    WRONG_SENDER = "wrong-sender"
    WRONG_RECEIVER = "wrong-receiver"
    WRONG_SESSION = "wrong-session"
    WRONG_STEP = "wrong-step"
    ALREADY_ANSWERED = "already-answered"
    UNKNOWN_PARTY = "unknown-party"
    LATE = "late"
    ENDED = "ended"
    # what a party finds in a message that the server signed; the session is over for this party
    OTHER_ROUND = "other-round"
    OTHER_MODEL = "other-model"
    OTHER_PLAN = "other-plan"
    OTHER_DIMENSION = "other-dimension"
    OTHER_PARAMETERS = "other-parameters"
    OTHER_COHORT = "other-cohort"
    THRESHOLD_LOWERED = "threshold-lowered"
    FLOOR_LOWERED = "floor-lowered"
    THRESHOLD_BELOW_POLICY = "threshold-below-policy"
    FLOOR_BELOW_POLICY = "floor-below-policy"
    ADVERSARY_NOT_ALLOWED = "adversary-not-allowed"
    SELF_MISSING = "self-missing"
    KEY_SUBSTITUTED = "key-substituted"
    KEY_REPEATED = "key-repeated"
    BAD_KEY = "bad-key"
    FORGED_STATEMENT = "forged-statement"
    LIST_GREW = "list-grew"
    BELOW_FLOOR = "below-floor"
    TOO_FEW_HOLDERS = "too-few-holders"
    TOO_FEW_SIGNATURES = "too-few-signatures"
    PLEDGE_SUBSTITUTED = "pledge-substituted"
    PLEDGE_NOT_OPENED = "pledge-not-opened"
    TOO_MANY_DRAWS = "too-many-draws"
    # what the server finds in a message that a party signed
    WRONG_RECIPIENTS = "wrong-recipients"
    OTHER_SURVIVORS = "other-survivors"
    WRONG_KIND = "wrong-kind"
    WRONG_SHARE = "wrong-share"
    WRONG_DEALING = "wrong-dealing"
    DISPUTED_SHARE = "disputed-share"
    BROKEN_PLEDGE = "broken-pledge"
    GROUP_LOST = "group-lost"
    NO_ANSWER = "no-answer"

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        return _REASONS[self]


_REASONS = {
    Reason.TRUNCATED: "the message ends too early",
    Reason.OVERSIZE: "the message is longer than its step allows",
    Reason.MALFORMED: "the message is not written as its step says",
    Reason.BAD_SIGNATURE: "the signature is not the sender's",
    Reason.WRONG_SENDER: "the message names another sender than the one it came from",
    Reason.WRONG_RECEIVER: "the message was written for another receiver",
    Reason.WRONG_SESSION: "the message belongs to another session",
    Reason.WRONG_STEP: "the message belongs to a step whose turn has not come",
    Reason.ALREADY_ANSWERED: "this step was answered before, to another message; each step is answered once",
    Reason.UNKNOWN_PARTY: "the party is not in the cohort of this session",
    Reason.LATE: "the message came after its step was closed; it is not used",
    Reason.ENDED: "the session is over",
    Reason.OTHER_ROUND: "the server speaks of another run, round or attempt than the party's orders",
    Reason.OTHER_MODEL: "the server's model is not the one that this party holds",
    Reason.OTHER_PLAN: "the server's plan is not the one that this party agreed to",
    Reason.OTHER_DIMENSION: "the server's vector has another length than the party's orders",
    Reason.OTHER_PARAMETERS: "the server's protocol parameters are not those of the party's orders",
    Reason.OTHER_COHORT: "the cohort, or the identity of one of its parties, is not what this party knows",
    Reason.THRESHOLD_LOWERED: "the server's threshold is below that of the party's orders",
    Reason.FLOOR_LOWERED: "the server's smallest cohort is below that of the party's orders",
    Reason.THRESHOLD_BELOW_POLICY: "the threshold is below what this party's policy asks for",
    Reason.FLOOR_BELOW_POLICY: "the smallest cohort is below what this party's policy asks for",
    Reason.ADVERSARY_NOT_ALLOWED: "this party's policy asks for protection against a stronger server",
    Reason.SELF_MISSING: "the server's list leaves out this party, which did answer",
    Reason.KEY_SUBSTITUTED: "the server shows other keys for this party than those that it sent",
    Reason.KEY_REPEATED: "two public keys of the session are the same",
    Reason.BAD_KEY: "a public key is no usable X25519 key",
    Reason.FORGED_STATEMENT: "the server shows a statement that the party it names did not sign",
    Reason.LIST_GREW: "the server's list holds a party that was not in the list before it",
    Reason.BELOW_FLOOR: "fewer parties than the smallest cohort would stand in the sum; it is not unmasked",
    Reason.TOO_FEW_HOLDERS: "fewer parties than the threshold hold shares of one party's secrets",
    Reason.TOO_FEW_SIGNATURES: "fewer parties than the threshold signed the same list of survivors",
    Reason.PLEDGE_SUBSTITUTED: "the server shows another pledge for this party than the one that it sent",
    Reason.PLEDGE_NOT_OPENED: "a pledge of the list was not opened, so that the groups are not drawn",
    Reason.TOO_MANY_DRAWS: "groups were drawn as often, for this run or for its data, as this party takes part in",
    Reason.WRONG_RECIPIENTS: "the shares are not addressed to exactly the neighbours of their sender",
    Reason.OTHER_SURVIVORS: "the party signed another list of survivors than the one it was sent",
    Reason.WRONG_KIND: "the party sent a share that was not asked for",
    Reason.WRONG_SHARE: "the party sent shares of others that do not fit",
    Reason.WRONG_DEALING: "the party dealt shares of its own secret that do not fit",
    Reason.DISPUTED_SHARE: "one share does not fit, and the party either dealt it wrongly or sent it wrongly",
    Reason.BROKEN_PLEDGE: "the party opened its pledge with something else than it pledged",
    Reason.GROUP_LOST: "too few of the party's group were left; the group is not unmasked",
    Reason.NO_ANSWER: "the party did not answer in time",
}


@final
class SessionOutcome(enum.Enum):
    """How a session ended. Only ``DONE`` has a sum; after any other, the server knows who took part and no more."""

    DONE = "done"
    TOO_FEW_KEYS = "too-few-keys"
    NO_DRAW = "no-draw"
    TOO_FEW_SHARES = "too-few-shares"
    TOO_FEW_INPUTS = "too-few-inputs"
    TOO_FEW_SIGNATURES = "too-few-signatures"
    TOO_FEW_UNMASKED = "too-few-unmasked"
    WRONG_SHARES = "wrong-shares"
    STOPPED = "stopped"

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        return _OUTCOMES[self]


_OUTCOMES = {
    SessionOutcome.DONE: "the sum of the survivors' vectors was unmasked",
    SessionOutcome.TOO_FEW_KEYS: "too few parties sent keys; no party sent anything else",
    SessionOutcome.NO_DRAW: "some parties did not open their pledges, so that no groups were drawn; no vector was sent",
    SessionOutcome.TOO_FEW_SHARES: "too few parties shared their secrets; no party sent its vector",
    SessionOutcome.TOO_FEW_INPUTS: "too few parties sent their masked vectors; nothing was unmasked",
    SessionOutcome.TOO_FEW_SIGNATURES: "too few parties signed the list of survivors; nothing was unmasked",
    SessionOutcome.TOO_FEW_UNMASKED: "too few parties helped to unmask; the sum stays hidden",
    SessionOutcome.WRONG_SHARES: (
        "too many shares were wrong, so that a mask could not be rebuilt; the sum stays hidden"
    ),
    SessionOutcome.STOPPED: "the session was stopped before its end; nothing was unmasked",
}


@final
class Refused(QuietsumError):
    """A party or a parser refuses a message, and says why. ``about`` names the party at fault where one is known."""

    exit_code = 1

    def __init__(self, reason: Reason, about: str = "") -> None:
        self.reason, self.about = reason, about
        super().__init__(f"secure aggregation: {reason.sentence}" + (f" ({about})" if about else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return Refused, (self.reason, self.about)
