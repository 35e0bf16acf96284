"""What do public configurations promise, and what is stated for them?

Each file in ``benchmarks/claims`` is a configuration as it stands in another project's documentation, examples or
issues, with its source. This program checks them all and prints the table of docs/explanation/claims-of-others.md,
sorted by file. With --peers Google's dp-accounting prices the same events beside us, where it knows them.

    python benchmarks/claims.py                # the table
    python benchmarks/claims.py --write        # and put it into the page
    python benchmarks/claims.py --peers        # a second library beside ours
"""

from __future__ import annotations

import argparse
import functools
import math
import re
from pathlib import Path
from typing import Any

from quietsum.audit import CheckedClaim, CheckedLine, check_claim, read_claim
from quietsum.cli.shared.output import figure

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "explanation" / "claims-of-others.md"
MARKS = "<!-- table -->", "<!-- /table -->"


@functools.cache
def checked() -> tuple[tuple[Path, CheckedClaim], ...]:
    """Every configuration, checked."""
    return tuple((path, check_claim(read_claim(path))) for path in sorted((HERE / "claims").glob("*.toml")))


def bounds(line: CheckedLine) -> str:
    """ε from both sides."""
    if line.line.event is None and line.line.least is None:
        return "none"
    lower, upper = (brief(value, up) for value, up in ((line.epsilon_lower, False), (line.epsilon, True)))
    if math.isinf(line.epsilon):
        return "not known" if line.epsilon_lower == 0 else f"≥ {lower}"
    same = line.epsilon_lower > 0 and line.epsilon / line.epsilon_lower < 1.0005
    return upper if same else f"{lower} to {upper}"


def brief(value: float, up: bool) -> str:
    """Four digits, rounded outwards."""
    if value == 0 or math.isinf(value):
        return figure(value)
    digits = 3 - math.floor(math.log10(value))
    scaled = value * 10.0**digits
    nearest = round(scaled)
    if abs(scaled - nearest) > 1e-6:
        nearest = math.ceil(scaled) if up else math.floor(scaled)
    found = nearest / 10.0**digits
    return f"{found:.2e}" if found >= 1e6 else f"{found:,.{max(0, digits)}f}"


def table() -> str:
    """The table of the page."""
    rows = ["| configuration | stated ε | true ε | of one | answer | why |", "|---|--:|--:|---|---|---|"]
    sources = []
    for number, (_, claim) in enumerate(checked(), start=1):
        for line in claim.lines:
            label = claim.file.title + (f", {line.line.label}" if line.line.label else "")
            why = ", ".join(one.name for one in line.remarks if one.kind != "note") or "–"
            stated = "none" if line.line.epsilon is None else f"{line.line.epsilon:g}"
            rows.append(
                f"| {label} [{number}] | {stated} | {bounds(line)} | {line.line.unit} | {line.ruling} | {why} |"
            )
        note = f" {claim.file.note}" if claim.file.note else ""
        sources.append(f"{number}. {claim.file.source}.{note}")
    return "\n".join([*rows, "", "Where each stands:", "", *sources])


def page_with(text: str) -> str:
    """The page with ``text`` between its marks."""
    whole = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{MARKS[0]}.*{MARKS[1]}", lambda _: f"{MARKS[0]}\n\n{text}\n\n{MARKS[1]}", whole, flags=re.DOTALL)


def peers() -> None:
    """Our upper bound beside dp-accounting's privacy-loss distribution, for add-or-remove-one neighbours."""
    for path, claim in checked():
        for line in claim.lines:
            other = theirs(line)
            if other is not None:
                print(f"{path.stem:28} {line.line.label:10} ours {line.epsilon:.6g}  dp-accounting {other:.6g}")


def theirs(line: CheckedLine) -> float | None:
    """The same event in dp-accounting; None where it has no such event."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    from quietsum import privacy

    def convert(event: privacy.PrivacyEvent) -> Any:
        match event:
            case privacy.Gaussian(noise_multiplier=noise):
                return dp_event.GaussianDpEvent(noise)
            case privacy.PoissonSampled(rate=rate, event=inner):
                return dp_event.PoissonSampledDpEvent(rate, convert(inner))
            case privacy.Repeated(times=times, event=inner):
                return dp_event.SelfComposedDpEvent(convert(inner), times)
            case privacy.Composed(events=parts):
                return dp_event.ComposedDpEvent([convert(part) for part in parts])
            case _:
                raise LookupError

    if line.line.event is None or line.epsilon > 1000:  # its grid grows with ε
        return None
    try:
        event = convert(line.line.event)
    except LookupError:
        return None
    return float(PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(line.line.delta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--peers", action="store_true", help="price with dp-accounting as well")
    options = parser.parse_args()
    if options.peers:
        peers()
        return
    print(text := table())
    if options.write:
        PAGE.write_text(page_with(text), encoding="utf-8")


if __name__ == "__main__":
    main()
