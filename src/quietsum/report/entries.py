"""An entry of a ledger in words, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quietsum.ledger import Entry, Ledger

__all__ = ["describe_entry"]

_LONGEST = 16


def describe_entry(ledger: Ledger, entry: Entry, opened: dict[str, Entry] | None = None) -> tuple[str, str]:
    """What an entry says, and the name of the run that it belongs to; empty where it belongs to none.

    ``opened`` keeps the entries that opened runs, for a caller that describes many.
    """
    body = entry.body
    match entry.kind.value:
        case "genesis":
            return f"ledger {body['ledger'][:16]}…", ""
        case "run":
            about = f"parties: {len(body['datasets'])}"
        case "budget":
            return f"ε {body['epsilon']:g} per {body['unit']}: {body['dataset']} of {body['party']}", ""
        case "public":
            return f"{body['dataset']} of {body['party']}", ""
        case "correction":
            count = len(body["corrections"])
            return f"{count} figure{'s' if count != 1 else ''} of earlier prices put right", ""
        case "refund":
            about = f"{_when(ledger, entry, opened)}, {_short(body['party'])}"
        case _:
            about = _when(ledger, entry, opened)
    return about, str(body["run"])


def _when(ledger: Ledger, entry: Entry, known: dict[str, Entry] | None) -> str:
    """Round and attempt; or, in words, what came before the first round or after the last one.

    A coordinator keeps heads outside of rounds when a run ends. A site keeps them when it enrols, when it enrols again
    because one side was started anew, and when the run ends; an entry shows only of the first of these which it is. It
    keeps them, too, when a session is opened in which groups are drawn.
    """
    run, round, attempt = entry.body["run"], entry.body["round"], entry.body["attempt"]
    known = {} if known is None else known
    opened = known[run] = known.get(run) or ledger.run_entry(run)
    body = opened.body
    if round > 0 and _is_training(body):  # a training at one site has no rounds; steps are charged some at a time
        return f"steps from {round} on" + (f", attempt {attempt}" if attempt > 1 else "")
    if round > 0:
        return f"round {round}, attempt {attempt}"
    enrolled = body.get("terms", {}).get("enrolled")
    if enrolled is None:
        return f"round {round}, attempt {attempt}" if attempt else "end of run"
    if attempt and not enrolled:
        return f"groups drawn, session {attempt}"
    first = next(later.sequence for later in ledger.entries(opened.sequence + 1) if later.body.get("run") == run)
    return "enrolment" if attempt or first == entry.sequence else "enrolled again, or end of run"


def _is_training(opened: Mapping[str, Any]) -> bool:
    """Whether the run that this entry opened trains at one site."""
    plan = opened.get("plan")
    settings = plan.get("training") if isinstance(plan, Mapping) else None
    return isinstance(settings, Mapping) and "steps_per_epoch" in settings


def _short(name: str) -> str:
    """A name in at most sixteen letters, with its beginning and its end."""
    half = (_LONGEST - 1) // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half:]}"
