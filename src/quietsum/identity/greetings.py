"""Node keys at work: a site signs a greeting with its own, and the coordinator knows it by the roster.

Flower lets a node in by its registered key; who of those let in is *Basel* is what the greeting's signature says. ECDSA
on P-384 with SHA-384 (FIPS 186-5), the keys are those of :mod:`quietsum.identity.nodekeys`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey

from quietsum.identity.nodekeys import read_node_key, read_roster

__all__ = ["accepting", "roster_of", "signing", "signing_with"]


def signing_with(path: Path) -> Callable[[bytes], bytes]:
    """Sign with the node key in the file at ``path``."""
    return signing(read_node_key(path))


def signing(key: EllipticCurvePrivateKey) -> Callable[[bytes], bytes]:
    """Sign with ``key``."""
    return lambda message: key.sign(message, ECDSA(hashes.SHA384()))


def accepting(key: EllipticCurvePublicKey) -> Callable[[bytes, bytes], bool]:
    """Whether a signature, then the message, belong to ``key``."""

    def accepts(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message, ECDSA(hashes.SHA384()))
        except InvalidSignature:
            return False
        return True

    return accepts


def roster_of(path: Path) -> Mapping[str, Callable[[bytes, bytes], bool]]:
    """The sites in ``parties.toml``, each with the check of its signature."""
    return {name: accepting(key) for name, key in read_roster(path).items()}
