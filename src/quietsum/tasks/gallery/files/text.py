"""Documents: the texts that document Python's own standard library, or files of one's own.

Every Python brings some thousands of documents: the texts in triple quotes that say what its modules, classes and
functions do (PSF licence). They are found as text, nothing is imported or run: a document is such a text that begins on
a line of its own, 40 bytes long or longer. They differ a little from one version of Python to the next.

Of one's own there is a folder: each ``*.txt`` is a document, whose author is the folder that it lies in, if that is not
the top one; each line of a ``*.jsonl`` is a document with the keys ``text`` and, where they are known, ``author``,
``site`` and ``label``. Files are data: nothing of them is executed.

>>> [(one.site, one.kind, one.text) for one in find_documents('class A:\\n    ' + '"' * 3 + "Why. " * 9 + '"' * 3, "a")]
[('a', 1, 'Why. Why. Why. Why. Why. Why. Why. Why. Why.')]
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from quietsum.errors import DataMissing

__all__ = ["KINDS", "Document", "check_library", "find_documents", "read_documents", "read_library"]

KINDS: Final = ("module", "class", "function")
"""What a text of the standard library is about: the classes of the task."""
_LEAST: Final = 40
_LEFT_OUT: Final = frozenset({"test", "tests", "site-packages", "dist-packages", "idle_test", "lib2to3", "turtledemo"})
_TEXT: Final = re.compile(r'(?:^|(?<=\n))[ \t]*[rRuU]?"""(.*?)"""', re.DOTALL)
_NAMES: Final = ("text", "author", "site", "label")


@final
@dataclass(frozen=True, kw_only=True)
class Document:
    """One text, with what is known of it. Printing it shows nothing that it says."""

    text: str
    author: str = ""
    site: str = ""
    kind: int = -1

    def __repr__(self) -> str:
        return "Document()"


def find_documents(source: str, site: str) -> Iterator[Document]:
    """The documents in the source of one module."""
    for found in _TEXT.finditer(source):
        text = inspect.cleandoc(found[1]).strip()
        if len(text.encode()) >= _LEAST:
            before = source[: found.start()].rstrip()
            line = before[before.rfind("\n") + 1 :].strip()
            kind = 1 if line.startswith("class ") else 2 if line.endswith(":") and before else 0
            yield Document(text=text, site=site, kind=kind)


@functools.cache
def read_library() -> tuple[Document, ...]:
    """All documents of the standard library that runs this, in the order of its files. Takes a second."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found: list[Document] = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if not _LEFT_OUT & set(parts):
            try:
                source = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            found += find_documents(source, parts[0].removesuffix(".py"))
    if len(found) < 1000:
        raise DataMissing(f"{folder} holds {len(found)} documents, and the standard library some thousands: install it")
    return tuple(found)


def check_library(folder: Path) -> str:
    """One line of what is there."""
    documents = read_library()
    return f"{len(documents):,} documents of {len({one.site for one in documents})} modules"


def read_documents(folder: Path) -> tuple[Document, ...]:
    """The documents of a folder. What cannot be read as a document is an empty one, so that it counts as zero."""
    if not folder.is_dir():
        raise DataMissing(f"{folder} is not there; name the folder that holds *.txt or *.jsonl")
    found: list[Document] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".txt" and path.is_file():
            author = "" if path.parent == folder else path.parent.relative_to(folder).as_posix()
            found.append(Document(text=path.read_text(encoding="utf-8", errors="replace"), author=author))
        elif path.suffix == ".jsonl" and path.is_file():
            with path.open(encoding="utf-8", errors="replace") as lines:
                found += [_read_line(line) for line in lines if line.strip()]
    if not found:
        raise DataMissing(f"{folder} holds no *.txt and no *.jsonl; put documents there")
    return tuple(found)


def _read_line(line: str) -> Document:
    try:
        values = json.loads(line)
    except ValueError:
        return Document(text="")
    if not isinstance(values, dict):
        return Document(text="")
    text, author, site, label = (values.get(name) for name in _NAMES)
    return Document(
        text=text if isinstance(text, str) else "",
        author=str(author) if isinstance(author, str | int) else "",
        site=str(site) if isinstance(site, str | int) else "",
        kind=label if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < 2**31 else -1,
    )
