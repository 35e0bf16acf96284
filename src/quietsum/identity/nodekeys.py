"""Node keys: how a site shows who it is, and the roster that a coordinator knows its sites by.

An ECDSA key pair on P-384, written as OpenSSH writes it: what Flower reads, and what ``ssh-keygen -t ecdsa -b 384``
makes. The private half stays at the site; the public one is a line of text in the coordinator's ``parties.toml``::

    [parties.Basel]
    node_key = "ecdsa-sha2-nistp384 AAAA…"

Flower admits a node by its registered key. Which of the admitted nodes is *Basel* is shown by a signature in its first
message: ECDSA with SHA-384 (FIPS 186-5).
"""

from __future__ import annotations

import dataclasses
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from quietsum.errors import InvalidParameter, QuietsumError, Unreadable
from quietsum.ledger import fold, label

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = [
    "NodeKey", "fingerprint", "generate_key", "make_node_key", "make_signer", "make_verifier", "public_line",
    "read_node_key", "read_parties", "read_public_key", "read_signer", "read_small_file", "read_verifiers",
    "require_private",
]  # fmt: skip

LARGEST_FILE = 1 << 20
SSH_KIND = "ecdsa-sha2-nistp384"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeKey:
    """A site's key pair as OpenSSH writes it: ``private`` stays at the site, ``public`` is one line for the roster."""

    public: str
    private: bytes = dataclasses.field(repr=False)


def make_node_key() -> NodeKey:
    """A fresh key pair for one site."""
    from cryptography.hazmat.primitives import serialization as form

    key = generate_key()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    return NodeKey(public=public_line(key.public_key()), private=private)


def generate_key() -> EllipticCurvePrivateKey:
    """A private key on P-384 from the operating system's randomness."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def public_line(key: EllipticCurvePublicKey) -> str:
    """The public half as one line, without a comment: ``ecdsa-sha2-nistp384 AAAA…``."""
    from cryptography.hazmat.primitives import serialization as form

    return key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode("ascii")


def fingerprint(found: EllipticCurvePublicKey | x509.Certificate) -> str:
    """SHA-256 as others print it: of a key as ``ssh-keygen -l`` does, of a certificate in hexadecimal digits."""
    import base64
    import hashlib

    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(found, x509.Certificate):
        return found.fingerprint(SHA256()).hex()
    blob = base64.b64decode(public_line(found).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_public_key(content: bytes | str, *, where: str) -> EllipticCurvePublicKey:
    """The P-384 key of one OpenSSH line; ``where`` names its place in errors."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    made = "make one with quietsum keys node, or ssh-keygen -t ecdsa -b 384"
    if b"PRIVATE KEY" in data:
        raise InvalidParameter("key", where, "is a private key, which never leaves its site", "name the .pub file")
    if len([line for line in data.splitlines() if line.strip()]) != 1:
        raise Unreadable(f"{where} is not one line with a public key; {made}")
    try:
        key = load_ssh_public_key(data.strip())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unreadable(f"{where} holds no whole public key as OpenSSH writes it; {made}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InvalidParameter("key", where, "is of another kind than ECDSA on P-384", made)
    return key


def read_node_key(path: Path) -> EllipticCurvePrivateKey:
    """A site's private key. One that others can read is refused, as ssh would."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    content = read_small_file(path)
    require_private(path)
    made = "make one with quietsum keys node, or ssh-keygen -t ecdsa -b 384 without a passphrase"
    try:
        key = load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unreadable(f"{path} holds no whole private key as OpenSSH writes it; {made}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InvalidParameter("key", str(path), "is of another kind than ECDSA on P-384", made)
    return key


def require_private(path: Path) -> None:
    """Refuse a private key that others than its owner can read or write."""
    if os.name == "posix" and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise QuietsumError(f"{path} can be read by others (mode {mode:o}); chmod 600 {path}")


def read_parties(path: Path) -> Mapping[str, EllipticCurvePublicKey]:
    """The public key of every party, by name, in the file's order.

    Guarantees: no two parties share a key, and no two names differ only by what people overlook; either would let one
    party speak for another.
    """
    try:
        parsed = tomllib.loads(read_small_file(path).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} is not whole ({error}); put it back from a copy") from None
    tables = parsed.get("parties", {})
    foreign = sorted(set(parsed) - {"parties"})
    if foreign or not isinstance(tables, dict):
        raise Unreadable(f"{path} is no roster: it holds {', '.join(foreign) or 'no tables'}, not [parties.NAME]")
    found: dict[str, EllipticCurvePublicKey] = {}
    owners: dict[str, str] = {}
    for name, table in tables.items():
        if not isinstance(table, dict) or set(table) != {"node_key"} or not isinstance(table["node_key"], str):
            raise Unreadable(f'{path}: party {name!r} must have node_key = "{SSH_KIND} AAAA…" and nothing else')
        if label("party", name) != name:
            raise Unreadable(f"{path}: party {name!r} is not written in one way only; write {label('party', name)!r}")
        key = read_public_key(table["node_key"], where=f"the node_key of {name} in {path}")
        for token, what in ((fold(name), "one name"), (public_line(key), "one key")):
            if token in owners:
                raise Unreadable(f"{path}: {owners[token]} and {name} have {what}; take one of them out")
            owners[token] = name
        found[name] = key
    return MappingProxyType(found)


def read_small_file(path: Path) -> bytes:
    """The bytes of a small file; raises an error that names the file if it is missing or far too large."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise Unreadable(f"{path} is far too large for keys or certificates; name another file")
        return path.read_bytes()
    except OSError as error:
        raise InvalidParameter(
            "file", str(path), f"cannot be read ({error.strerror})", "quietsum keys pki says what lies where"
        ) from None


# -------------------------------------------------------------------------------------------- signatures


def make_signer(key: EllipticCurvePrivateKey) -> Callable[[bytes], bytes]:
    """A function that signs a message with ``key``."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return lambda message: key.sign(message, ECDSA(hashes.SHA384()))


def read_signer(path: Path) -> Callable[[bytes], bytes]:
    """A function that signs a message with the node key in the file at ``path``."""
    return make_signer(read_node_key(path))


def make_verifier(key: EllipticCurvePublicKey) -> Callable[[bytes, bytes], bool]:
    """A function of a signature and a message: whether ``key`` made that signature under that message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    def accepts(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message, ECDSA(hashes.SHA384()))
        except InvalidSignature:
            return False
        return True

    return accepts


def read_verifiers(path: Path) -> Mapping[str, Callable[[bytes, bytes], bool]]:
    """The sites in ``parties.toml``, each with the function that checks its signature."""
    return {name: make_verifier(key) for name, key in read_parties(path).items()}
