"""Known answers of the standards through our own functions, and what binds a key to its session, role and peers."""

from __future__ import annotations

import copy
import hashlib
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quietsum.errors import InvalidParameter, Unreadable
from quietsum.secagg import keys
from quietsum.secagg.keys import Identity, KeyPair
from quietsum.secagg.parameters import choose_parameters

SESSION = bytes(range(32))


def of(text: str) -> bytes:
    return bytes.fromhex(text)


# ------------------------------------------------------------------------------------------------ known answers


def test_rfc_7748_section_6_1_both_sides_reach_the_shared_secret() -> None:
    alice = KeyPair.rebuilt(of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair.rebuilt(of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public == of("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert bob.public == of("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = of("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert alice.exchange(bob.public) == bob.exchange(alice.public) == shared


def test_rfc_5869_appendix_a_1_and_a_3() -> None:
    key = HKDF(
        algorithm=hashes.SHA256(), length=42, salt=of("000102030405060708090a0b0c"), info=of("f0f1f2f3f4f5f6f7f8f9")
    )
    assert key.derive(b"\x0b" * 22) == of(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    key = HKDF(algorithm=hashes.SHA256(), length=42, salt=b"", info=b"")
    assert key.derive(b"\x0b" * 22) == of(
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


def test_our_derivation_is_rfc_5869_with_hmac_from_the_standard_library() -> None:
    """The second oracle: extract and expand by hand (section 2.2 and 2.3)."""
    import hmac

    seed, role = b"s" * 32, "self-mask"
    info = b"".join(len(part).to_bytes(8, "big") + part for part in (b"quietsum secure aggregation 1", role.encode()))
    extracted = hmac.digest(SESSION, seed, "sha256")
    assert keys.derive(seed, session=SESSION, role=role) == hmac.digest(extracted, info + b"\x01", "sha256")


@pytest.mark.parametrize(
    ("private", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_rfc_8032_section_7_1(private: str, public: str, message: str, signature: str) -> None:
    identity = Identity(Ed25519PrivateKey.from_private_bytes(of(private)))
    assert identity.public == of(public)
    assert identity.sign(of(message)) == of(signature)
    assert keys.is_signed_by(of(public), of(signature), of(message))
    assert not keys.is_signed_by(of(public), of(signature), of(message) + b".")


def test_nist_sp_800_38d_aes_256_gcm_test_cases_13_14_and_16() -> None:
    """Cases of the GCM specification for 256-bit keys, through the same primitive that seals shares."""
    assert AESGCM(bytes(32)).encrypt(bytes(12), b"", b"") == of("530f8afbc74536b9a963b4f1c4cb738b")
    assert AESGCM(bytes(32)).encrypt(bytes(12), bytes(16), b"") == of(
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    )
    key = of("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308")
    plain = of(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
        "ba637b39"
    )
    sealed = of(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a"
        "bcc9f66276fc6ece0f4e1768cddf8853bb2d551b"
    )
    assert (
        AESGCM(key).encrypt(of("cafebabefacedbaddecaf888"), plain, of("feedfacedeadbeeffeedfacedeadbeefabaddad2"))
        == sealed
    )


def test_a_seal_is_gcm_under_the_given_key_with_the_nonce_in_front() -> None:
    sealed = keys.seal(b"k" * 32, b"share", session=SESSION, sender="Basel", receiver="Bern")
    assert len(sealed) == len(b"share") + keys.SEAL_OVERHEAD
    parts = (b"quietsum secure aggregation 1", SESSION, b"Basel", b"Bern")
    bound = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert AESGCM(b"k" * 32).decrypt(sealed[:12], sealed[12:], bound) == b"share"


# ------------------------------------------------------------------------------------------------------ binding


def test_both_sides_agree_and_session_role_and_pair_each_change_the_key() -> None:
    a, b, c = KeyPair.fresh(), KeyPair.fresh(), KeyPair.fresh()
    key = keys.agree(a, b.public, session=SESSION, role="mask")
    assert key == keys.agree(b, a.public, session=SESSION, role="mask")
    others = {
        keys.agree(a, b.public, session=bytes(32), role="mask"),
        keys.agree(a, b.public, session=SESSION, role="shares"),
        keys.agree(a, c.public, session=SESSION, role="mask"),
        keys.derive(a.exchange(b.public), session=SESSION, role="mask"),
    }
    assert len(others) == 4 and key not in others


def test_an_agreed_key_is_hkdf_of_the_whole_shared_secret_with_hmac_from_the_standard_library() -> None:
    import hmac

    ours, theirs = KeyPair.fresh(), KeyPair.fresh()
    parts = (b"quietsum secure aggregation 1", b"mask", *sorted((ours.public, theirs.public)))
    info = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    extracted = hmac.digest(SESSION, ours.exchange(theirs.public), "sha256")
    key = hmac.digest(extracted, info + b"\x01", "sha256")
    assert keys.agree(ours, theirs.public, session=SESSION, role="mask") == key


def repeats(derive: Callable[[bytes], bytes], count: int = 1 << 17) -> int:
    """How often a derived key comes back among as many seeds: twice on average where 32 bits are left of a seed."""
    return count - len({derive(place.to_bytes(32, "big")) for place in range(count)})


def test_derived_keys_keep_more_than_32_bits_of_their_seed() -> None:
    assert repeats(lambda seed: keys.derive(seed, session=SESSION, role="self")) == 0


@pytest.mark.parametrize(
    "narrow",
    [lambda seed: zlib.crc32(seed), lambda seed: int.from_bytes(hashlib.sha256(seed).digest()[:4], "big")],
    ids=["crc", "hash"],
)
def test_keys_from_a_32_bit_seed_would_come_back(narrow: Callable[[bytes], int]) -> None:
    """The negative control: the mutant of the key path."""
    found = repeats(lambda seed: narrow(hashlib.sha512(seed).digest()).to_bytes(4, "big"))
    assert found > 0


@pytest.mark.parametrize("public", [bytes(32), (1).to_bytes(32, "little"), b"short", b""])
def test_a_public_key_of_low_order_or_another_length_is_refused(public: bytes) -> None:
    with pytest.raises(InvalidParameter, match="public"):
        keys.agree(KeyPair.fresh(), public, session=SESSION, role="mask")


def test_a_rebuilt_pair_has_the_advertised_public_key() -> None:
    pair = KeyPair.fresh()
    assert KeyPair.rebuilt(pair.private_to_share()).public == pair.public


def test_fresh_pairs_and_seeds_never_repeat() -> None:
    assert len({KeyPair.fresh().public for _ in range(50)} | {keys.draw_seed() for _ in range(50)}) == 100


@pytest.mark.parametrize("change", ["session", "sender", "receiver", "key", "swapped", "bit", "cut", "empty"])
def test_a_sealed_share_opens_only_in_its_session_for_its_receiver_from_its_sender(change: str) -> None:
    key, words = b"k" * 32, {"session": SESSION, "sender": "Basel", "receiver": "Bern"}
    sealed = keys.seal(key, b"share", **words)  # type: ignore[arg-type]
    assert keys.unseal(key, sealed, **words) == b"share"  # type: ignore[arg-type]
    match change:
        case "session":
            words["session"] = bytes(32)
        case "sender" | "receiver":
            words[change] = "Zug"
        case "swapped":
            words["sender"], words["receiver"] = words["receiver"], words["sender"]
        case "key":
            key = b"l" * 32
        case "bit":
            sealed = sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:]
        case "cut":
            sealed = sealed[:-1]
        case "empty":
            sealed = b""
    with pytest.raises(keys.Unauthentic):
        keys.unseal(key, sealed, **words)  # type: ignore[arg-type]


def test_every_part_of_the_session_changes_it_and_the_order_of_the_parties_does_not() -> None:
    base: dict[str, Any] = {
        "parameters": choose_parameters(3),
        "keys": {"a": [b"1", b"2"], "b": [b"3", b"4"], "c": [b"5", b"6"]},
        "model": b"m",
        "run": "r",
        "round": 1,
        "attempt": 0,
    }
    changes: list[dict[str, Any]] = [
        {"parameters": choose_parameters(4)},
        {"keys": {"a": [b"2", b"1"], "b": [b"3", b"4"], "c": [b"5", b"6"]}},
        {"keys": {"a": [b"12", b""], "b": [b"3", b"4"], "c": [b"5", b"6"]}},
        {"keys": {"a": [b"1", b"2"], "b": [b"3", b"4"]}},
        {"model": b"n"},
        {"run": "s"},
        {"round": 2},
        {"attempt": 1},
        {"more": (b"plan",)},
    ]
    seen = {keys.session_id(**(base | change)) for change in changes}
    assert len(seen) == len(changes)
    assert keys.session_id(**base) not in seen
    turned = {"keys": dict(reversed(base["keys"].items()))}
    assert keys.session_id(**(base | turned)) == keys.session_id(**base)


def test_no_two_lists_of_parts_have_one_digest() -> None:
    assert keys.hash_parts("x", b"ab", b"c") != keys.hash_parts("x", b"a", b"bc")
    assert keys.hash_parts("x", b"a") != keys.hash_parts("y", b"a")


# --------------------------------------------------------------------------------------------------- identities


def test_an_identity_persists_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    made = Identity.at(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.at(path).public == made.public
    path.chmod(0o644)
    with pytest.raises(Unreadable, match="chmod 600"):
        Identity.at(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_holds_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Unreadable, match="no Ed25519 key"):
        Identity.at(path)


@pytest.mark.parametrize("secret", [Identity.fresh(), KeyPair.fresh()])
def test_private_halves_are_not_copied_pickled_or_printed(secret: Identity | KeyPair) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(secret)
    assert secret.public.hex() in repr(secret)


@pytest.mark.parametrize(("public", "signature"), [(b"", b""), (bytes(31), bytes(64)), (bytes(32), b"x")])
def test_broken_keys_and_signatures_are_simply_not_accepted(public: bytes, signature: bytes) -> None:
    assert not keys.is_signed_by(public, signature, b"message")
