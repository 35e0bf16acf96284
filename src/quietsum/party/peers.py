"""By which keys sites know each other in a secure round, and why those.

A site's *ledger key* (Ed25519) is what everybody here knows it by: its letters are signed with it, the coordinator's
roster vouches for it through the node key, and a site that lost it has lost its books. A session of secure aggregation
needs a key of its own (:class:`~quietsum.secagg.Identity`), so that nothing signed there can be mistaken for a letter.
It is made from the ledger's, by a signature under a fixed sentence: it needs no file, survives a restart, and is gone
when the ledger is. A *certificate* is the ledger's signature under it. The coordinator carries certificates to the
others, who check them: a peer whose ledger the policy pins must have that ledger; any other is known by the first
certificate that this process has seen in a run, and a change is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quietsum.errors import QuietsumError
from quietsum.ledger import VerifyingKey, message_to_sign
from quietsum.party.secure import absent
from quietsum.secagg import Identity
from quietsum.wire import Signer

__all__ = ["UnknownPeer", "certificate", "identity_of", "key_in", "peers_of"]

_SEED = b"quietsum: the key of this ledger's site in sessions of secure aggregation"


class UnknownPeer(QuietsumError):
    """Somebody in the cohort is not who this site knows."""


def identity_of(ledger: Signer) -> Identity:
    """The site's identity in secure rounds: as lasting, and as secret, as the key of its ledger."""
    seed = hashlib.sha256(b"quietsum-secure-seed-1\n" + bytes.fromhex(ledger.sign(_SEED))).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


def certificate(ledger: Signer, public_key: str, party: str, identity: Identity) -> dict[str, str]:
    """The ledger's word for ``identity``; ``public_key`` is the ledger's own, in hexadecimal."""
    key = identity.public.hex()
    return {"key": key, "ledger": public_key, "signature": ledger.sign(_statement(party, key))}


def key_in(told: object, party: str) -> tuple[bytes, VerifyingKey]:
    """The identity that a certificate of ``party`` names, and the ledger that vouches for it; :class:`UnknownPeer`."""
    if isinstance(told, Mapping) and set(told) == {"key", "ledger", "signature"}:
        with contextlib.suppress(ValueError, TypeError):
            key, ledger = bytes.fromhex(told["key"]), VerifyingKey(bytes.fromhex(told["ledger"]))
            if len(key) == 32 and ledger.accepts(told["signature"], message_to_sign(_statement(party, key.hex()))):
                return key, ledger
    raise UnknownPeer(f"the certificate of {party[:60]!r} is none")


def peers_of(told: object, *, run: str, own: str, pinned: Mapping[str, str], known: dict[str, str]) -> dict[str, bytes]:
    """The identities of a cohort from the coordinator's certificates; a party that never came has None in its place.

    ``pinned`` are names of ledgers by party, from the policy. ``known`` are those that this run has shown before, and
    is added to. :class:`UnknownPeer` names who is not the one that it was.
    """
    if not isinstance(told, Mapping) or not all(isinstance(name, str) for name in told):
        raise UnknownPeer("the cohort is no list of certificates")
    found: dict[str, bytes] = {}
    fresh: dict[str, str] = {}
    for party, shown in told.items():
        if shown is None:
            if party == own:
                raise UnknownPeer("this site is said not to have come")
            found[party] = absent(run, party)
            continue
        key, ledger = key_in(shown, party)
        wanted = pinned.get(party) or known.get(party)
        if wanted is not None and ledger.ledger != wanted:
            raise UnknownPeer(f"{party!r} has another ledger ({ledger.ledger}) than the one this site knows ({wanted})")
        found[party], fresh[party] = key, ledger.ledger
    if len(set(found.values())) != len(found) or len(set(fresh.values())) != len(fresh):
        raise UnknownPeer("two of the cohort are one and the same")
    known.update(fresh)
    return found


def _statement(party: str, key: str) -> bytes:
    return f"quietsum-secure-1\n{party}\n{key}".encode()
