"""What a run means for the lifetime budgets of its data, in sentences for people, before anything is spent."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from quietsum.errors import printable

if TYPE_CHECKING:
    from quietsum.ledger import Book, Outlook
    from quietsum.plan import ResolvedPlan

__all__ = ["lifetime_sentences", "ungated_sentences"]

_NAMED = 4
"""So many parties are named in a sentence."""


def lifetime_sentences(outlooks: Iterable[Outlook]) -> list[str]:
    """One sentence for all parties that are in the same state; a run that would be the last one is announced so."""
    alike: dict[tuple[object, ...], list[Outlook]] = {}
    for one in outlooks:
        alike.setdefault((one.budget, one.unit, one.fixes, one.stated, _percent(one.room)), []).append(one)
    return [_sentence(group) for group in alike.values()]


def _sentence(group: list[Outlook]) -> str:
    one, names = group[0], [printable(outlook.party) for outlook in group]
    whose = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    budget = f"ε = {one.budget.figure} per {one.unit} at δ = {one.budget.delta:g}"
    left = (
        f"leaves about {_percent(one.room)} of it to later runs" if _percent(one.room) else "is the last one that fits"
    )
    if one.stated:
        fixed = ", which this run fixes for good" if one.fixes else ""
        return f"Lifetime of the data of {whose}: {budget}{fixed}. This run {left}."
    opening = (
        f"Lifetime of the data of {whose}: none is stated, so this run fixes its own {budget} for good, and {left}."
    )
    if one.unit.value == "person":  # a plan states none per person
        return f"{opening} Its owner can raise it: quietsum ledger raise --unit person."
    larger = f"lifetime = {{ epsilon = {4 * one.budget.epsilon:.3g}, delta = {one.budget.delta:g} }}"
    return f"{opening} To keep room for others, state one under privacy.{one.unit} before it starts: {larger}, say."


def ungated_sentences(resolved: ResolvedPlan, books: Iterable[Book]) -> list[str]:
    """One sentence for the parties whose data the plan protects although the ledger knows it as public.

    A rehearsal with ``new --public`` leaves such books: no lifetime would hold the protected run back, in silence.
    """
    reasons = {(book.party, book.dataset): book.public for book in books if book.budget is None and book.public}
    found = [one for one in resolved.parties if not one.public and (one.account, one.dataset) in reasons]
    if not found or not resolved.limits:
        return []
    first = found[0]
    names = list(dict.fromkeys(printable(one.name) for one in found))
    whose = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    where = " ".join(
        f"--{option} {shlex.quote(value)}"
        for option in ("party", "dataset")
        for value in dict.fromkeys(one.account if option == "party" else one.dataset for one in found)
    )
    limit = resolved.limits[0]
    unit = "" if limit.unit.value == "record" else f" --unit {limit.unit}"
    return [
        f"The data of {whose} was declared public in this workspace "
        f"({printable(reasons[first.account, first.dataset])}), so no lifetime budget holds this run or later ones "
        "back. If its rows need protection, give the data another name, or set a budget before the run: "
        f"quietsum ledger raise {where}{unit} --epsilon {4 * limit.epsilon:.3g} --delta {limit.delta:g} --reason why"
    ]


def _percent(room: float) -> str:
    return "" if room < 0.005 else f"{100 * room:.0f} %"
