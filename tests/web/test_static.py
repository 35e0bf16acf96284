"""The files that come from elsewhere are the ones that were looked at, with their licences; nothing else is sent."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import quietsum
from quietsum.web.rendering import Files

STATIC = Path(quietsum.__file__).parent / "web" / "static"


def vendored() -> dict[str, tuple[str, str]]:
    """By file: the package that it comes from, and its SHA-256, as the list beside the files has them."""
    text = (STATIC / "VENDORED.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^(\S+\.js)\s+(\S+@\d+\.\d+\.\d+)\s+([0-9a-f]{64})$", text, re.MULTILINE)
    return {name: (package, digest) for name, package, digest in lines}


def test_each_vendored_file_has_the_hash_that_is_written_down() -> None:
    found = vendored()
    assert set(found) == {path.name for path in STATIC.glob("*.js")} - {"page.js"}
    for name, (package, digest) in found.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, (name, package)


def test_the_licence_of_each_package_lies_beside_it() -> None:
    text = (STATIC / "VENDORED.txt").read_text(encoding="utf-8")
    assert text.count("Permission to use, copy, modify, and/or distribute") == len(
        {one for one, _ in vendored().values()}
    )


def test_our_own_files_load_nothing_from_elsewhere() -> None:
    for name in ("page.js", "page.css", "icon.svg"):
        text = (STATIC / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text), name


def test_the_address_of_files_changes_when_they_do() -> None:
    assert re.fullmatch("[0-9a-f]{12}", Files.digest())
