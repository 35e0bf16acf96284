"""The ledger's own key: every head is signed, so that a rewritten ledger cannot pass for the one that was there.

Ed25519, one key a ledger, in a PEM file that only its owner can read. The public half stands in the genesis entry, and
the ledger's name *is* the start of the SHA-256 of it, so a ledger rewritten with another key cannot keep its name. An
attacker who holds both the file and the key can still rewrite everything; that is what anchors (heads kept elsewhere)
are for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, final

from quietsum.errors import LedgerBroken
from quietsum.files import rename, sync_folder, write_new

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["SigningKey", "VerifyingKey", "key_path", "key_warnings", "load_key", "save_new_key", "settle_key"]


@final
class VerifyingKey:
    """The public half: tells whether a signature is the ledger's."""

    def __init__(self, raw: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self.raw = raw
        self._key: Ed25519PublicKey = Ed25519PublicKey.from_public_bytes(raw)

    @property
    def hex(self) -> str:
        """As it stands in the genesis entry."""
        return self.raw.hex()

    @property
    def ledger(self) -> str:
        """The ledger's name: the first 32 hexadecimal digits of the SHA-256 of the public key."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    def accepts(self, signature: str, message: bytes) -> bool:
        """Whether ``signature`` is this key's under ``message``, written as signatures are: no capitals, no spaces."""
        from cryptography.exceptions import InvalidSignature

        try:
            raw = bytes.fromhex(signature)
            if raw.hex() != signature:
                return False
            self._key.verify(raw, message)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


@final
class SigningKey:
    """The private half. It signs, and is never printed, pickled or logged."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = VerifyingKey(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        """A fresh key from the operating system's randomness."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    def sign(self, message: bytes) -> str:
        """A signature in hexadecimal."""
        return self._key.sign(message).hex()

    def pem(self) -> bytes:
        """The unencrypted PKCS #8 text of the key file."""
        from cryptography.hazmat.primitives import serialization as form

        return self._key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())

    def __repr__(self) -> str:
        return f"SigningKey(ledger={self.public.ledger!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a ledger's key is not pickled; open the ledger in the other process")


def key_path(ledger: Path) -> Path:
    """``ledger.db`` → ``ledger.db.key``."""
    return ledger.with_name(ledger.name + ".key")


def _fresh_path(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + ".key.new")


def save_new_key(ledger: Path, key: SigningKey) -> None:
    """Write ``key`` beside its ledger, durably, as ``….key.new``: it counts once the genesis entry is there.

    With the key under its final name first, a crash before the genesis entry would look like a deleted ledger; with
    the genesis entry first, it would leave a ledger that cannot be continued.
    """
    path = _fresh_path(ledger)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    write_new(path, key.pem(), failpoint="ledger.create:key-written")
    sync_folder(ledger.parent)


def settle_key(ledger: Path, public_key: str) -> None:
    """Give a fresh key its final name when the ledger's genesis entry names it."""
    fresh = _fresh_path(ledger)
    if key_path(ledger).exists():
        return
    with contextlib.suppress(FileNotFoundError):
        if _read(fresh).public.hex == public_key:
            rename(fresh, key_path(ledger))


def key_warnings(ledger: Path) -> tuple[str, ...]:
    """What is wrong with the key file beside ``ledger``, which is not read: missing, or open to others."""
    path = key_path(ledger)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        if _fresh_path(ledger).exists():  # the next start gives it its name
            return ()
        return (f"its key {path} is missing: nothing can be added here without it; see that a copy is kept",)
    if os.name == "posix" and mode & 0o077:
        return (f"its key {path} can be read by others (mode {mode:o}), who could rewrite it: chmod 600 {path}",)
    return ()


def load_key(ledger: Path, public_key: str) -> SigningKey:
    """The key beside ``ledger``, where it is the one that the genesis entry names."""
    path = key_path(ledger)
    try:
        key = _read(path)
    except FileNotFoundError:
        raise LedgerBroken(
            f"has lost its key: {path} is missing",
            remedy="put the key back from its copy; without it one can verify the ledger, but add nothing",
        ) from None
    if key.public.hex != public_key:
        raise LedgerBroken(
            f"has another key beside it than the one it began with ({path})",
            remedy="put back the key that belongs to this ledger, or the ledger that belongs to this key",
        )
    return key


def _read(path: Path) -> SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        text = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LedgerBroken(
            f"has a key that cannot be read ({path}: {error.strerror})", remedy="check its owner"
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise LedgerBroken(f"has a key that others can read ({path}, mode {mode:o})", remedy=f"chmod 600 {path}")
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise LedgerBroken(
            f"has a key file that holds no Ed25519 key ({path})", remedy="put the key back from its copy"
        )
    return SigningKey(key)
