"""What a PostgreSQL server's refusals mean for a ledger, and what to do about each.

Each says whether anything was recorded. Messages hold the server's own first line and the ledger's place, never the
statement or what was sent with it.
"""

from __future__ import annotations

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.stores.protocol import StoreFailed, StoreMustWait

__all__ = ["lesson_of", "words_of"]

RESTORE_DATABASE = (
    "restore the database from a backup; never begin a new ledger for the same data, it would forget what was spent"
)

_SHUT = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied")
"""What a server says that runs and takes others; libpq gives no SQLSTATE while it connects."""


def words_of(error: BaseException) -> str:
    """The server's words in one line, without the statement or anything that was sent."""
    diagnosis = getattr(error, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(error)
    return " ".join(text.split()).partition(" Either provide the file")[0]  # libpq's advice is to check less


def lesson_of(error: Exception, name: str, *, operational: bool) -> QuietsumError:
    """The error that a user sees for one of libpq's, by its SQLSTATE."""
    text, state = words_of(error), getattr(error, "sqlstate", None) or ""
    if "append-only" in text:
        return StoreFailed(f"{text} (in {name}); nothing was recorded")
    if isinstance(error, UnicodeDecodeError) or state in ("XX001", "XX002", "22021", "22P02"):
        return LedgerBroken(f"in {name} is damaged ({text})", remedy=RESTORE_DATABASE)
    if state in ("42P01", "3F000", "42703"):
        return LedgerBroken(f"in {name} has lost its tables ({text})", remedy=RESTORE_DATABASE)
    if state == "55P03":
        return StoreMustWait(
            f"another coordinator has been writing to {name} for too long ({text}); nothing was recorded: "
            "wait for it, or find out why it hangs, and try again"
        )
    if state in ("40001", "40P01", "23505"):
        return StoreMustWait(
            f"somebody wrote to {name} without waiting for their turn ({text}); nothing was recorded: try again"
        )
    if state in ("53100", "53200", "58030"):  # disk full, out of memory, input or output failed
        return StoreMustWait(
            f"the server took no more for {name} ({text}); nothing was recorded, so nothing may be sent: "
            "make room there and run the same command again"
        )
    if state in ("42501", "25006"):
        return StoreFailed(
            f"{name} may not be written or read by this role, or is a standby ({text}); nothing was recorded: "
            "see docs/how-to/shared-ledger.md for the rights that a ledger needs"
        )
    if operational and ("certificate" in text or "SSL" in text) and "client certificate" not in text:
        return StoreFailed(
            f"{name} and this side do not come together over TLS ({text}); nothing was recorded, so nothing may be "
            "sent: see that the server has ssl = on, that sslrootcert=… in the address is the authority which signed "
            "its certificate, and that the address calls it by a name in there"
        )
    if state[:2] in ("28", "3D") or (operational and any(word in text for word in _SHUT)):
        return StoreFailed(
            f"{name} does not let this side in ({text}); nothing was recorded, so nothing may be sent: mend the user, "
            "the database or the password, or the server's pg_hba.conf"
        )
    if operational:
        return StoreMustWait(
            f"{name} does not answer, or ended the connection ({text}); nothing was recorded, so nothing may be sent: "
            "see that the server runs and can be reached, and run the same command again"
        )
    return StoreFailed(f"{name} refused to work ({text}); nothing was recorded")
