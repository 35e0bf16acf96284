"""The egress pack: all that leaves the house with a model, in one file that can be checked as a whole.

It holds the released files, the report as page and as JSON, the exported ledger, the guarantee card, the frozen plan,
views of the same facts for those who ask for them in their own words, and ``MANIFEST.json``, which lists the SHA-256 of
each and is signed like the report. Equal files give equal bytes: entries are sorted, uncompressed and carry no clock,
so that a pack is the same wherever it is made, and one altered byte is found anywhere in it.

The verifier lies in it as a text, to be read and compared. A pack is a stranger's file: take the program that checks it
from the package (``quietsum report --verify out.zip``), never from the pack.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.files import read_file
from quietsum.ledger import Ledger, export_ledger
from quietsum.plan import GuaranteeCard
from quietsum.report.pages.page import render_page
from quietsum.report.pages.views import list_views
from quietsum.report.signed.signing import sign
from quietsum.report.verifier import LARGEST_PACK, MANIFEST, check_export, pack, render
from quietsum.runs import Workspace

__all__ = ["DERIVED", "EXPORT", "PLAN", "VERIFIER", "derive_files", "make_pack", "own_verifier"]

EXPORT = "ledger-export.jsonl"
VERIFIER = "verifier.txt"
PLAN = "plan.toml"
DERIVED = ("report.html", "guarantee.md", "guarantee.json", "README.md", PLAN)
"""What is written from the report, beside the views."""
_README = """\
# {run}

What is in this folder was released by one run of quietsum {version}. Begin with report.html.

{files}

## Check it

    pip install quietsum
    quietsum report --verify PACK.zip --key FINGERPRINT

That computes every privacy figure again; it needs neither the data nor the workspace. Get the fingerprint of the key
some other way than with this pack: by telephone, from a page of the hospital or bank, from a contract. Others can make
another pack, sign it with a key of their own, and all of it fits together; the fingerprint alone tells.

{verifier} is the source of a check of hashes and signatures that needs Python and the library cryptography alone. It is
here to be read. Do not run a program that came with a pack: take it from the package, where it is
quietsum/report/verifier.py. `quietsum report --verify` says whether both are the same.
"""
_ABOUT = {
    "report.html": "the privacy report, a page", "report.json": "the same for machines, signed",
    EXPORT: "the ledger: every charge of this run and of others, without who took part in which round",
    "guarantee.md": "who learns what, under which assumption", "guarantee.json": "the same for machines",
    PLAN: "the plan as it was frozen", "model.safetensors": "the model, with what it cost in its header",
    "weights.safetensors": "the model as a state dict", "answers.json": "the answers", "options.json": "its options",
    "audit.json": "the audit of the run by its canaries",
    "client-audit.json": "the audit of the run by its canary clients",
    VERIFIER: "a check of hashes and signatures, to be read", "MANIFEST.json": "the hash of each file, signed",
}  # fmt: skip


def make_pack(values: Mapping[str, Any], folder: Path, workspace: Workspace) -> tuple[bytes, list[str]]:
    """(the pack, the names in it) for the signed report ``values`` of the run or training in ``folder``.

    Raises CorruptState if a released file is not the one that the report speaks of.
    """
    files: dict[str, bytes] = {}
    for artefact in values["artefacts"]:
        name = artefact["file"]
        content = _read(folder / name)
        if hashlib.sha256(content).hexdigest() != artefact["sha256"]:
            raise CorruptState(f"{folder / name} changed while the pack was made; make it again")
        files[name] = content
    if not files:
        problem = "has released nothing yet, so there is nothing to pack"
        raise InvalidParameter("run", values["run"], problem, "finish it first")
    if (folder / PLAN).is_file():
        files[PLAN] = _read(folder / PLAN)
    files["report.json"] = render(values)
    files[EXPORT] = _export(workspace, values["ledger"]["public_key"], values["ledger"]["head"])
    files[VERIFIER] = own_verifier()
    files.update(derive_files(values, files))
    files["MANIFEST.json"] = render(_manifest(values, files, workspace))
    content = pack(files)
    if len(content) > LARGEST_PACK:
        raise InvalidParameter(
            "run", values["run"], f"has more than {LARGEST_PACK:,} bytes to pack", "send it in parts"
        )
    return content, sorted(files)


def derive_files(values: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a pack with these other ``files`` holds that is written from the report alone."""
    made = {"report.html": render_page(values).encode()}
    if values["card"]:
        made["guarantee.md"] = GuaranteeCard.from_dict(values["card"]).to_markdown().encode()
        made["guarantee.json"] = render(values["card"])
    made.update({f"views/{name}": text.encode() for name, text in list_views(values).items()})
    names = set(files) - {"README.md", "MANIFEST.json"}
    return {**made, "README.md": _readme(values, dict.fromkeys(names | set(made), b"")).encode()}


def own_verifier() -> bytes:
    """The source of the verifier that this package has."""
    return resources.files("quietsum.report").joinpath("verifier.py").read_bytes()


def _manifest(values: Mapping[str, Any], files: Mapping[str, bytes], workspace: Workspace) -> dict[str, Any]:
    listed = [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(files.items())
    ]
    manifest = {"format": MANIFEST, "run": values["run"], "quietsum": values["version"], "files": listed}
    return sign(manifest, workspace.ledger, values["ledger"]["public_key"], MANIFEST)


def _export(workspace: Workspace, public_key: str, head: Mapping[str, Any]) -> bytes:
    """The exported ledger, in which the report's head must be."""
    with tempfile.TemporaryDirectory() as place, Ledger.open(workspace.ledger, read_only=True) as ledger:
        path = Path(place) / EXPORT
        export_ledger(ledger, path)
        content = _read(path)
    check_export(content, public_key, head)
    return content


def _readme(values: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    names = sorted([*files, "MANIFEST.json"])
    listed = "\n".join(f"* `{name}`: {_ABOUT.get(name, 'the same facts, as others ask for them')}" for name in names)
    return _README.format(run=values["run"], version=values["version"], files=listed, verifier=VERIFIER)


def _read(path: Path) -> bytes:
    try:
        return read_file(path, LARGEST_PACK)
    except OSError as error:
        raise CorruptState(f"{path} cannot be read ({error.strerror or error})") from None
