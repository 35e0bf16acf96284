"""Keys of a secure round: who speaks (Ed25519), what two parties share (X25519 and HKDF), and sealed shares (AES-GCM).

An :class:`Identity` persists and only signs. A :class:`KeyPair` is made anew for every attempt of every round, since
the server may rebuild the mask pair of a party that dropped out: a pair used twice would open the round before. Every
key that is used for anything comes from HKDF-SHA256 (RFC 5869) with the session as salt and its role and both public
keys in the info, and every key has one use, so a mask of one session, role or pair says nothing about another. The
session is a hash of everything that must be the same for all: the parameters, all committed public keys, the hash of
the global model, the run, its round and the attempt. A server that shows two parties different models gets masks that
do not cancel.

X25519 is RFC 7748, Ed25519 RFC 8032, AES-256-GCM NIST SP 800-38D with a random nonce of 96 bits.

>>> ours, theirs = KeyPair.fresh(), KeyPair.fresh()
>>> key = agree(ours, theirs.public, session=bytes(32), role="mask")
>>> key == agree(theirs, ours.public, session=bytes(32), role="mask")
True
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quietsum.errors import InvalidParameter, QuietsumError, Unreadable
from quietsum.files import PRIVATE, write_atomically

if TYPE_CHECKING:
    from quietsum.secagg.parameters import Parameters

__all__ = [
    "KEY_BYTES",
    "SEAL_OVERHEAD",
    "SIGNATURE_BYTES",
    "Identity",
    "KeyPair",
    "Unauthentic",
    "agree",
    "derive",
    "draw_seed",
    "hash_parts",
    "is_signed_by",
    "seal",
    "session_id",
    "unseal",
]  # fmt: skip

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_OVERHEAD = 12 + 16
"""Bytes that :func:`seal` adds: nonce and tag."""

_LABEL = b"quietsum secure aggregation 1"
_LENGTHS = tuple(size.to_bytes(8, "big") for size in range(256))


class Unauthentic(QuietsumError, ValueError):
    """A sealed message that was altered, or made for another session, sender or receiver. Nothing was read from it."""


# --------------------------------------------------------------------------------------------------- identities


@final
class Identity:
    """A party's signing key (Ed25519). It persists, signs, and is never printed, pickled or logged."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes_raw()

    @classmethod
    def fresh(cls) -> Identity:
        """A new identity from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def at(cls, path: Path) -> Identity:
        """The identity in the file at ``path``, made there if it is missing; readable by its owner alone."""
        try:
            return cls.from_pem(_private_text(path), where=str(path))
        except FileNotFoundError:
            pass
        identity = cls.fresh()
        try:
            write_atomically(path, identity.pem(), mode=PRIVATE, replace=False, remedy="make room, then start again")
        except FileExistsError:  # another process was quicker; its identity counts
            return cls.from_pem(_private_text(path), where=str(path))
        return identity

    @classmethod
    def from_pem(cls, text: bytes, *, where: str = "the key") -> Identity:
        """The identity whose unencrypted PKCS #8 text this is."""
        try:
            key = form.load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise Unreadable(f"{where} holds no Ed25519 key in PEM; put the key back from its copy, or make a new one")
        return cls(key)

    def pem(self) -> bytes:
        """The unencrypted PKCS #8 text of the key file."""
        return self._key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of a signature."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an identity is not pickled; read its file in the other process")


def is_signed_by(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether ``signature`` over ``message`` is that of the identity with this public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _private_text(path: Path) -> bytes:
    try:
        text = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"the key {path} cannot be read ({error.strerror}); check its owner") from None
    if os.name == "posix" and mode & 0o077:
        raise Unreadable(f"the key {path} can be read by others (mode {mode:o}); chmod 600 {path}")
    return text


# ------------------------------------------------------------------------------------------------ pairs and keys


@final
class KeyPair:
    """An X25519 key pair for one attempt of one round."""

    __slots__ = ("_key", "public")

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes_raw()

    @classmethod
    def fresh(cls) -> KeyPair:
        """A new pair from the operating system's randomness."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def rebuilt(cls, private: bytes) -> KeyPair:
        """The pair whose private half was put together from shares; compare ``public`` with what was advertised."""
        if len(private) != KEY_BYTES:
            raise InvalidParameter("private", f"{len(private)} bytes", f"must have {KEY_BYTES} bytes")
        return cls(X25519PrivateKey.from_private_bytes(private))

    def private_to_share(self) -> bytes:
        """The private half, 32 bytes, for :func:`quietsum.secagg.shamir.split` and for nothing else."""
        return self._key.private_bytes_raw()

    def exchange(self, public: bytes) -> bytes:
        """The raw Diffie–Hellman secret (RFC 7748); a public key of low order is refused."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except (ValueError, TypeError):
            raise InvalidParameter("public", public.hex(), "is no X25519 key that agrees on a secret") from None

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a round's key pair is not copied or saved: a retry makes a new one")


def agree(pair: KeyPair, public: bytes, *, session: bytes, role: str) -> bytes:
    """The key that ``pair`` and the owner of ``public`` share in ``session`` for one ``role``; the same on both sides.

    HKDF-SHA256 with the X25519 secret as input, the session as salt, and role and both public keys (sorted) in the
    info.
    """
    both = sorted((pair.public, public))
    return _hkdf(pair.exchange(public), salt=session, info=_pack(_LABEL, role.encode(), *both))


def derive(seed: bytes, *, session: bytes, role: str) -> bytes:
    """A key from a seed of one's own (the self-mask's), bound to session and role like those of :func:`agree`."""
    if len(seed) != KEY_BYTES:
        raise InvalidParameter("seed", f"{len(seed)} bytes", f"must have {KEY_BYTES} bytes")
    return _hkdf(seed, salt=session, info=_pack(_LABEL, role.encode()))


def draw_seed() -> bytes:
    """32 bytes from the operating system, for a self-mask."""
    return os.urandom(KEY_BYTES)


def session_id(
    *,
    parameters: Parameters,
    keys: Mapping[str, Sequence[bytes]],
    model: bytes,
    run: str,
    round: int,
    attempt: int,
    more: Sequence[bytes] = (),
) -> bytes:
    """The session: one hash of all that every party must see alike.

    ``keys`` are the public keys that each party committed to (their order within a party counts, the order of the
    parties does not), ``model`` is the hash of the global model, ``more`` is what else the caller wants bound, such as
    the plan's digest and the vector's layout.
    """
    committed = [_pack(name.encode(), *keys[name]) for name in sorted(keys)]
    numbers = _pack(run.encode(), str(int(round)).encode(), str(int(attempt)).encode())
    return hash_parts("session", parameters.to_bytes(), _pack(*committed), model, numbers, _pack(*more))


def hash_parts(role: str, *parts: bytes) -> bytes:
    """SHA-256 of the parts, each with its length in front, so that no two lists of parts read the same."""
    return hashlib.sha256(_pack(_LABEL, role.encode(), *parts)).digest()


def _pack(*parts: bytes) -> bytes:
    """The parts, each with its length in eight bytes in front."""
    pieces: list[bytes] = []
    for part in parts:
        size = len(part)
        pieces.append(_LENGTHS[size] if size < len(_LENGTHS) else size.to_bytes(8, "big"))
        pieces.append(part)
    return b"".join(pieces)


def _hkdf(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


# ------------------------------------------------------------------------------------------------------ sealing


def seal(key: bytes, plain: bytes, *, session: bytes, sender: str, receiver: str) -> bytes:
    """``plain`` for one receiver: nonce, AES-256-GCM ciphertext, tag; session, sender and receiver are authenticated.

    The same key serves both directions between two parties: what A sealed for B is not accepted as B's for A.
    """
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, plain, _pack(_LABEL, session, sender.encode(), receiver.encode()))


def unseal(key: bytes, sealed: bytes, *, session: bytes, sender: str, receiver: str) -> bytes:
    """What :func:`seal` was given. Raises :class:`Unauthentic` if any byte, name or the session is another."""
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], _pack(_LABEL, session, sender.encode(), receiver.encode()))
    except (InvalidTag, ValueError):
        raise Unauthentic(
            f"a sealed message from {sender!r} to {receiver!r} is not what was sealed in this session; nothing was read"
        ) from None
