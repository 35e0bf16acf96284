"""The words of private learning: what each means, what it does, what to choose and what goes wrong.

The texts live in the TOML files beside this one; ``quietsum explain`` shows them. Names are looked up without regard
to case, blanks, hyphens and underscores, and by symbols and older names too:

>>> look_up("σ").name
'noise_multiplier'
>>> look_up("Max Grad Norm").name
'max_grad_norm'
>>> nearest("noise_multiplyer")[0]
'noise_multiplier'
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import tomllib
from importlib import resources
from typing import Any, final

from quietsum.errors import InvalidParameter

__all__ = ["Term", "look_up", "nearest", "sections", "terms"]

_SECTIONS = ("parameters", "definitions", "mechanisms", "federation", "defence", "practice")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """One entry. ``see`` names related entries."""

    name: str
    section: str
    meaning: str
    effect: str
    range: str
    common_error: str
    symbol: str = ""
    aliases: tuple[str, ...] = ()
    see: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return {**dataclasses.asdict(self), "aliases": list(self.aliases), "see": list(self.see)}


@functools.cache
def sections() -> dict[str, tuple[Term, ...]]:
    """All entries in the order in which they are listed, by section."""
    found: dict[str, tuple[Term, ...]] = {}
    for section in _SECTIONS:
        text = resources.files(__package__).joinpath(f"{section}.toml").read_text(encoding="utf-8")
        found[section] = tuple(_term(section, values) for values in tomllib.loads(text)["term"])
    return found


def terms() -> tuple[Term, ...]:
    """All entries."""
    return tuple(term for group in sections().values() for term in group)


def look_up(word: str) -> Term:
    """The entry for a name, a symbol or an older name; an unknown one raises with the nearest names."""
    exact, plain = _index()
    found = exact.get(word.strip()) or plain.get(_plain(word))
    if found is None:
        close = nearest(word)
        remedy = f"did you mean {' or '.join(close)}?" if close else "'quietsum explain' lists them all"
        raise InvalidParameter("term", word, "is not in the glossary", remedy)
    return found


def nearest(word: str, count: int = 3) -> list[str]:
    """Names of entries that ``word`` may have meant, the likeliest first."""
    _, plain = _index()
    wanted = _plain(word)
    if not wanted:
        return []
    close = [plain[key].name for key in difflib.get_close_matches(wanted, plain, n=2 * count, cutoff=0.7)]
    inside = [
        term.name
        for key, term in plain.items()
        if len(wanted) > 3 and (wanted in key or (len(key) > 3 and key in wanted))
    ]
    return list(dict.fromkeys(close + inside))[:count]


def _term(section: str, values: dict[str, Any]) -> Term:
    fields: dict[str, Any] = {
        key: " ".join(value.split()) if isinstance(value, str) else tuple(value) for key, value in values.items()
    }
    return Term(section=section, **fields)


def _plain(word: str) -> str:
    return re.sub(r"[\s_\-]+", "", word.casefold())


@functools.cache
def _index() -> tuple[dict[str, Term], dict[str, Term]]:
    """By exact spelling (Δ is not δ), and by plain spelling; names win over other names' aliases."""
    exact: dict[str, Term] = {}
    plain: dict[str, Term] = {}
    for words in (
        lambda term: (term.name,),
        lambda term: (term.symbol,) if term.symbol else (),
        lambda term: term.aliases,
    ):
        for term in terms():
            for word in words(term):
                exact.setdefault(word, term)
                plain.setdefault(_plain(word), term)
    return exact, plain
