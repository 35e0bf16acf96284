"""Check a signed report or an egress pack with Python and ``cryptography`` alone: this file imports nothing else.

    python verifier.py report.json --key FINGERPRINT
    python verifier.py pack.zip --key FINGERPRINT

It checks bytes: hashes, signatures, the chain of an exported ledger. It does not compute a privacy figure again; that
is ``quietsum report --verify`` (``pip install quietsum``, the base install is enough), which uses this file for the
rest.

A pack comes from a stranger, so take this file from the package, never from a pack. Nothing that is read here is
executed, unpacked to a disk or followed: a pack is read into memory, in the one form that quietsum writes, in which
nothing is compressed. So its size bounds everything in it, and any other form is refused.

**Any altered byte is found.** A report is signed as canonical JSON and must be written exactly as quietsum writes it; a
pack must be, byte for byte, what its own files give when they are packed again.

**What a signature cannot say.** Somebody can make another report, sign it with another key, and everything in it fits
together. Only the fingerprint of the ledger's key, which you got some other way than with the file, tells.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "LARGEST_PACK",
    "LARGEST_REPORT",
    "Broken",
    "check_export",
    "check_key",
    "check_pack",
    "check_signed",
    "fingerprint_of",
    "message_of",
    "pack",
    "read_document",
    "render",
    "unpack",
]

REPORT = "quietsum-report-1"
MANIFEST = "quietsum-pack-1"
LARGEST_REPORT = 64 * 1024 * 1024
"""Bytes of the largest report that is read."""
LARGEST_PACK = 1024 * 1024 * 1024
"""Bytes of the largest pack that is read."""
MOST_FILES = 64
LEAST_KEY = 32
_NAME = re.compile(r"(?:views/)?[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


class Broken(Exception):
    """What was given is not what was signed."""


# ------------------------------------------------------------------------------------------ one signed document


def render(document: Mapping[str, Any]) -> bytes:
    """The one way in which a document is written to a file."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def read_document(content: bytes, *, largest: int = LARGEST_REPORT) -> dict[str, Any]:
    """The JSON object in ``content``; Broken if it is none, is too large, or is not written as :func:`render` does."""
    if len(content) > largest:
        raise Broken(f"it is larger than {largest:,} bytes")
    try:
        document = json.loads(content.decode("utf-8"))
        if not isinstance(document, dict):
            raise Broken("it is not a JSON object")
        again = render(document)
    except (ValueError, RecursionError) as error:
        raise Broken(f"it is no JSON ({str(error)[:120]})") from None
    if again != content:
        raise Broken("it is not written as quietsum writes it: it was altered, or formatted anew")
    return document


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, each float as its shortest decimal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def message_of(document: Mapping[str, Any], kind: str = REPORT) -> bytes:
    """What the signature of ``document`` covers: its kind, and all of it but the signature."""
    said = {name: value for name, value in document.items() if name != "signature"}
    return canonical([kind, said]).encode()


def fingerprint_of(public_key: str) -> str:
    """SHA-256 of a public key in hexadecimal; a ledger's name is the first half of it."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()


def check_key(public_key: str, key: str) -> None:
    """Broken if ``key``, a fingerprint of 32 digits or more, is another one's; ValueError if it is no fingerprint.

    The public key itself does as well.
    """
    wanted = re.sub(r"[\s:]", "", key).lower()
    if len(wanted) < LEAST_KEY or len(wanted) > 64 or not re.fullmatch("[0-9a-f]+", wanted):
        raise ValueError(f"a fingerprint has {LEAST_KEY} to 64 hexadecimal digits")
    if not fingerprint_of(public_key).startswith(wanted) and public_key != wanted:
        raise Broken(
            f"it was signed by the key {fingerprint_of(public_key)}, which is not the one you named ({wanted})"
        )


def check_signed(document: Mapping[str, Any], kind: str = REPORT) -> str:
    """The public key that signed ``document``; Broken if it is not signed, or was altered since."""
    signed = document.get("signature")
    if not isinstance(signed, dict):
        raise Broken("it is not signed")
    if set(signed) != {"format", "algorithm", "public_key", "signature"}:
        raise Broken("its signature has other parts than format, algorithm, public_key and signature")
    if (signed["format"], signed["algorithm"]) != (kind, "Ed25519"):
        raise Broken(f"its signature is not one of {kind} by Ed25519")
    _check_signature(signed["public_key"], signed["signature"], _envelope(message_of(document, kind)))
    return str(signed["public_key"])


def _envelope(message: bytes) -> bytes:
    """A ledger signs the hash of a message in an envelope that no head of the ledger could be."""
    return canonical(["quietsum-message-1", hashlib.sha256(message).hexdigest()]).encode()


def _check_signature(public_key: Any, signature: Any, message: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        if not re.fullmatch("[0-9a-f]{64}", public_key) or not re.fullmatch("[0-9a-f]{128}", signature):
            raise ValueError
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError, TypeError):
        raise Broken("its signature is not that of its contents") from None


# -------------------------------------------------------------------------------------------- an exported ledger

_LINE = {"sequence", "kind", "time", "previous", "hash", "signature", "body_hash"}


def check_export(content: bytes, public_key: str, head: Mapping[str, Any] | None = None) -> int:
    """Entries in the chain of an exported ledger, whose key and ``head`` (that of a report) must be these; else Broken.

    Hashes, links, the key of the genesis entry and the signature of every entry are checked.
    """
    ledger, previous, number, seen = fingerprint_of(public_key)[:32], "0" * 64, 0, head is None
    for line in content.split(b"\n")[:-1]:
        number += 1
        try:
            entry = json.loads(line.decode("utf-8"))
            keys = set(entry)
            if keys - {"body"} != _LINE or (canonical(entry) != line.decode("utf-8")):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise Broken(f"line {number} of the exported ledger is not as it was written") from None
        body = entry["body_hash"]
        if "body" in entry and hashlib.sha256(canonical(entry["body"]).encode()).hexdigest() != body:
            raise Broken(f"entry {number} of the exported ledger was altered")
        said = ["quietsum-entry-1", ledger, previous, number, entry["kind"], body, entry["time"]]
        found = hashlib.sha256(canonical(said).encode()).hexdigest()
        if (entry["sequence"], entry["previous"], entry["hash"]) != (number, previous, found):
            raise Broken(f"entry {number} of the exported ledger does not follow the one before it")
        if number == 1 and (entry["kind"] != "genesis" or entry.get("body", {}).get("public_key") != public_key):
            raise Broken("the exported ledger begins with another key than the one that signed")
        if head is not None and head.get("sequence") == number:
            seen = head.get("hash") == found
        _check_signature(public_key, entry["signature"], canonical(["quietsum-head-1", ledger, number, found]).encode())
        previous = found
    if not number or not content.endswith(b"\n"):
        raise Broken("the exported ledger is empty, or its end was cut off")
    if not seen:
        raise Broken("the head in the report is not in the exported ledger: one of them is older, or was rewritten")
    return number


# ------------------------------------------------------------------------------------------------------- the pack


def pack(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive of these files, uncompressed and without a clock: equal files give equal bytes, on any machine."""
    parts, central, offset = [], [], 0
    for name in sorted(files):
        content, written = files[name], name.encode("ascii")
        common = struct.pack(
            "<HHHHHIIIHH", 20, 0, 0, 0, 0x21, zlib.crc32(content), len(content), len(content), len(written), 0
        )
        parts += [b"PK\x03\x04", common, written, content]
        central.append(
            b"PK\x01\x02" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, offset) + written
        )
        offset += 4 + len(common) + len(written) + len(content)
    directory = b"".join(central)
    end = struct.pack("<HHHHIIH", 0, 0, len(files), len(files), len(directory), offset, 0)
    return b"".join([*parts, directory, b"PK\x05\x06", end])


def unpack(content: bytes) -> dict[str, bytes]:
    """The files in a pack, in memory; Broken for everything that :func:`pack` would not have written.

    Compressed or encrypted entries, names that lead elsewhere, names that stand twice, a second archive behind or
    before this one, comments and other dates are all refused.
    """
    if len(content) > LARGEST_PACK:
        raise Broken(f"the pack is larger than {LARGEST_PACK:,} bytes")
    files: dict[str, bytes] = {}
    offset = 0
    while content[offset : offset + 4] == b"PK\x03\x04":
        if len(files) >= MOST_FILES:
            raise Broken(f"the pack holds more than {MOST_FILES} files")
        header = content[offset + 4 : offset + 30]
        if len(header) < 26:
            raise Broken("the pack was cut off")
        _, flags, method, _, _, _, size, full, length, extra = struct.unpack("<HHHHHIIIHH", header)
        begin = offset + 30 + length
        written = content[offset + 30 : begin]
        if flags or method or extra or size != full or begin + size > len(content):
            raise Broken("the pack is not in the form that quietsum writes: something in it is compressed or altered")
        name = written.decode("ascii", "replace")
        if not _NAME.fullmatch(name) or name in files:
            raise Broken(f"the pack holds a file whose name stands twice or leads elsewhere: {name[:80]!r}")
        files[name] = content[begin : begin + size]
        offset = begin + size
    if not files or pack(files) != content:
        raise Broken(
            "the pack is not, byte for byte, what its own files give: it was altered, or made by another program"
        )
    return files


def check_pack(content: bytes) -> tuple[dict[str, bytes], dict[str, Any], str]:
    """(the files, the report, the public key) of a pack in which every hash and signature holds; else Broken."""
    files = unpack(content)
    if "MANIFEST.json" not in files or "report.json" not in files:
        raise Broken("the pack has no MANIFEST.json or no report.json")
    manifest = read_document(files["MANIFEST.json"])
    key = check_signed(manifest, MANIFEST)
    try:
        listed = {one["name"]: (one["bytes"], one["sha256"]) for one in manifest["files"]}
    except (LookupError, TypeError):
        raise Broken("MANIFEST.json does not list the files") from None
    others = {name: content for name, content in files.items() if name != "MANIFEST.json"}
    if set(listed) != set(others) or len(listed) != len(manifest["files"]):
        raise Broken(f"MANIFEST.json and the pack differ in {sorted(set(listed) ^ set(others))}")
    for name, one in others.items():
        if listed[name] != (len(one), hashlib.sha256(one).hexdigest()):
            raise Broken(f"{name} in the pack is not the file that MANIFEST.json lists")
    report = read_document(files["report.json"])
    if check_signed(report) != key:
        raise Broken("report and MANIFEST.json were signed by different keys")
    if manifest.get("run") != report.get("run"):
        raise Broken("MANIFEST.json is of another run than the report")
    try:
        artefacts = [(str(one["file"]), one["sha256"]) for one in report["artefacts"]]
        head = report["ledger"]["head"]
        known = isinstance(head, dict)
    except (LookupError, TypeError):
        known = False
    if not known:
        raise Broken("report.json in the pack is no report: it names no files, or no head of a ledger")
    for name, hashed in artefacts:
        if hashlib.sha256(files.get(name, b"")).hexdigest() != hashed:
            raise Broken(f"{name!r} is not the file that the report speaks of")
    if "ledger-export.jsonl" in files:
        check_export(files["ledger-export.jsonl"], key, head)
    return files, report, key


def main(words: Sequence[str]) -> int:
    """Check the named file; 0 if it holds, 4 if it is broken, 2 if the words are wrong."""
    named = [word for word in words if not word.startswith("-")]
    key = words[words.index("--key") + 1] if "--key" in words[:-1] else None
    paths = [word for word in named if word != key]
    if len(paths) != 1:
        print("usage: python verifier.py report.json|pack.zip [--key FINGERPRINT]", file=sys.stderr)
        return 2
    try:
        with open(paths[0], "rb") as file:
            content = file.read(LARGEST_PACK + 1)
        if content.startswith(b"PK"):
            files, report, public_key = check_pack(content)
            print(f"whole   {len(files)} files, every hash, both signatures and the chain of the ledger")
        else:
            report = read_document(content)
            public_key = check_signed(report)
            print("whole   the report is what was signed")
        if key is not None:
            check_key(public_key, key)
            print("key     the one that you named")
        else:
            print("key     NOT CHECKED: others can sign another report. Get the fingerprint some other way; use --key")
        print(f"signed  by the key with fingerprint {fingerprint_of(public_key)}")
        print(f"figures NOT COMPUTED AGAIN: pip install quietsum, then quietsum report --verify {paths[0]}")
    except Broken as problem:
        print(f"error: {paths[0]}: {problem}", file=sys.stderr)
        return 4
    except (OSError, ValueError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
