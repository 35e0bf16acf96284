"""``quietsum report``: the page that a privacy officer signs, its machine twin, the pack that leaves the house, and the
check of all three on another machine."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import command, print_json, print_next, print_warning, text_width
from quietsum.errors import CorruptState, InvalidParameter
from quietsum.files import NoRoom, read_file, write_atomically

if TYPE_CHECKING:
    from quietsum.report import Checked
    from quietsum.runs import Workspace

__all__ = ["report"]

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE.html", show_default=False,
        help="The page; report.json stands beside it. \\[default: in the run's folder]",
    ),
]  # fmt: skip
OperatorOption = Annotated[
    bool, typer.Option("--operator", help="The operator's own edition: with what a rule or detection found of parties.")
]
PackOption = Annotated[
    Path | None,
    typer.Option(
        "--pack", metavar="OUT.zip", show_default=False,
        help="Put model, report, exported ledger, guarantee card and their signatures into one file.",
    ),
]  # fmt: skip
VerifyOption = Annotated[
    Path | None,
    typer.Option(
        "--verify", metavar="FILE", show_default=False, help="Check a report.json or a pack; no workspace is needed."
    ),
]
ExportOption = Annotated[
    Path | None,
    typer.Option("--export", metavar="FILE", show_default=False, help="With --verify: the exported ledger."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="FINGERPRINT", show_default=False,
        help="With --verify: the fingerprint of the ledger's key, got some other way than with the file.",
    ),
]  # fmt: skip
CONTRADICTED = 5
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="A run, a training or a survey. \\[default: latest]",
        autocompletion=opt.complete_run,
    ),
]


def report(
    run: RunArgument = None,
    output: OutputOption = None,
    operator: OperatorOption = False,
    pack: PackOption = None,
    verify: VerifyOption = None,
    export: ExportOption = None,
    key: KeyOption = None,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Write the privacy report of a run, or check one; exit code 4 if it is broken.

    Example: quietsum report latest -o report.html

    Works for what quietsum run, train and ask have made. The page holds
    everything itself and runs no script; report.json is signed with the
    ledger's key. --verify computes each privacy figure again, on any machine;
    exit code 5 if all of it holds, and its own audit contradicts its claim.
    """
    if verify is not None:
        mixed = {"RUN": run, "--output": output, "--operator": operator or None, "--pack": pack}
        _refuse_beside("--verify", mixed)
        return _verify(verify, export, key, as_json)
    _refuse_beside("writing a report", {"--export": export, "--key": key})
    if pack is not None:
        _refuse_beside("--pack", {"--output": output, "--operator": operator or None})
    from quietsum.runs import Workspace

    place = Workspace.at(workspace)
    values, folder = _build(run or "latest", place, operator)
    signed = _sign(values, place)
    where = [] if workspace is None else ["--workspace", workspace]
    if pack is not None:
        _write_pack(pack, signed, folder, place, as_json)
        return 0
    page, twin = _places(output, folder, operator)
    _write(page, twin, signed, private=operator)
    if as_json:
        print_json({
            "run": signed["run"], "page": str(page), "report": str(twin), "signed": "signature" in signed,
            "fingerprint": signed["ledger"]["fingerprint"],
        })  # fmt: skip
        return 0
    for sentence in signed["sentences"]:
        print(textwrap.fill(sentence, text_width()), end="\n\n")
    print(f"wrote {page}\nwrote {twin}")
    _print_signature(signed)
    if operator:
        print(textwrap.fill("This is the operator's edition: it says what was found of single parties. Hand out the "
                            f"other one: {command(['report', signed['run'], *where])}", text_width()))  # fmt: skip
    print_next(["report", "--verify", twin])
    return 0


def _refuse_beside(main: str, given: dict[str, Any]) -> None:
    mixed = [name for name, value in given.items() if value is not None]
    if mixed:
        raise InvalidParameter(mixed[0], given[mixed[0]], f"does not go with {main}", "leave one of them out")


def _build(run: str, place: Workspace, operator: bool) -> tuple[dict[str, Any], Path]:
    """The values of the report, and the folder of the run or training."""
    from quietsum import report as reports

    found = reports.find_run(run, place)
    folder = found.path
    if isinstance(found, reports.Training):
        values = reports.build_training(found, place)
    else:
        values = reports.build(found, place)
    if "privacy" not in values:
        raise CorruptState(
            f"{folder} was begun by an older quietsum, which kept nothing that a report could be made from; the "
            "report.json in it is what there is"
        )
    if operator:
        values = {**values, "edition": "operator", "operator_only": reports.tell_operator(folder / "run.db")}
    return values, folder


def _sign(values: dict[str, Any], place: Workspace) -> dict[str, Any]:
    from quietsum import report as reports

    signed = reports.sign_report(values, place)
    if "signature" not in signed:
        print_warning(
            f"the report is not signed: the key of {place.ledger} is not here. Make it where the ledger is written, so "
            "that others can check it"
        )
    return signed


def _places(output: Path | None, folder: Path, operator: bool) -> tuple[Path, Path]:
    if output is None:
        name = "operator-report" if operator else "report"
        return folder / f"{name}.html", folder / f"{name}.json"
    if output.suffix.lower() not in (".html", ".htm"):
        raise InvalidParameter("output", str(output), "is no page", "name a file that ends in .html")
    if not output.absolute().parent.is_dir():
        raise InvalidParameter("output", str(output), "lies in a folder that is not there", "make the folder first")
    return output, output.with_suffix(".json")


def _write(page: Path, twin: Path, values: dict[str, Any], *, private: bool) -> None:
    from quietsum import report as reports
    from quietsum.files import PRIVATE

    mode = PRIVATE if private else None
    write_atomically(twin, reports.render(values), mode=mode)
    write_atomically(page, reports.render_page(values).encode(), mode=mode)


def _print_signature(values: dict[str, Any]) -> None:
    if "signature" in values:
        print(f"signed by the key of the ledger, whose fingerprint is\n  {values['ledger']['fingerprint']}")
        print(textwrap.fill("Give the fingerprint to the reader some other way than with the report.", text_width()))


def _write_pack(path: Path, values: dict[str, Any], folder: Path, place: Workspace, as_json: bool) -> None:
    from quietsum import report as reports

    if "signature" not in values:
        raise InvalidParameter("pack", str(path), "would not be signed", "make it where the ledger is written")
    content, names = reports.make_pack(values, folder, place)
    try:
        write_atomically(path, content, remedy="choose another place")
    except NoRoom as error:
        raise InvalidParameter("pack", str(path), f"cannot be written ({error})", "name another place") from None
    if as_json:
        fingerprint = values["ledger"]["fingerprint"]
        print_json({"run": values["run"], "pack": str(path), "files": names, "fingerprint": fingerprint})
        return
    print(f"wrote {path}: {len(content):,} bytes, {len(names)} files")
    for name in names:
        print(f"  {name}")
    _print_signature(values)
    print_next(["report", "--verify", path])


# ------------------------------------------------------------------------------------------------------- checking


def _verify(path: Path, export: Path | None, key: str | None, as_json: bool) -> int:
    from quietsum import report as reports

    content = _read(path, "verify", reports.LARGEST_PACK)
    if content.startswith(b"PK"):
        if export is not None:
            raise InvalidParameter("export", str(export), "does not go with a pack", "the pack holds its own")
        found = reports.check_pack_file(content, key=key)
    else:
        ledger = None if export is None else _read(export, "export", reports.LARGEST_PACK)
        files = _beside(path)
        found = reports.check_report(content, export=ledger, key=key, files=files)
    if as_json:
        print_json({"file": str(path), **found.to_dict()})
    else:
        _print_checked(found)
    return CONTRADICTED if found.contradicted else 0


def _beside(path: Path) -> dict[str, bytes]:
    """Released files that lie beside the report, as in a run's folder, and its page."""
    from quietsum import report as reports

    names = {
        name: path.with_name(name)
        for name in ("model.safetensors", "weights.safetensors", "answers.json", "audit.json", "client-audit.json")
    }
    names["report.html"] = path.with_suffix(".html")
    return {name: _read(one, "verify", reports.LARGEST_PACK) for name, one in names.items() if one.is_file()}


def _read(path: Path, word: str, limit: int) -> bytes:
    try:
        return read_file(path, limit)
    except OSError as error:
        raise InvalidParameter(word, str(path), f"cannot be read ({error.strerror or error})", "name a file") from None


def _print_checked(found: Checked) -> None:
    def line(name: str, text: str) -> None:
        print(textwrap.fill(f"{name:<12} {text}", text_width(), subsequent_indent=" " * 13, break_on_hyphens=False))

    for name, text in found.checked:
        line(name, text)
    for name, text in found.unchecked:
        line("NOT CHECKED", f"{name}: {text}")
    print(f"\nthe key that signed has the fingerprint\n  {found.fingerprint}")
    print(textwrap.fill(f"This is about run {found.run}. " + " ".join(found.document["sentences"]), text_width()))
