"""The egress pack: deterministic, whole to the byte, and read as a stranger's file."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quietsum.errors import CorruptState
from quietsum.ledger import Ledger, load_key, message_to_sign
from quietsum.report import check_pack_file, render
from quietsum.report.pages.views import OPEN
from quietsum.report.signed.packing import VERIFIER, own_verifier
from quietsum.report.verifier import MANIFEST, Broken, check_pack, main as verify_alone, message_of, pack, unpack
from report.test_signed import own_key, signed_anew as report_anew
from scenes import invoke, quietsum, tiny_toml


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("packed")
    (folder / "run.toml").write_text(tiny_toml(), encoding="utf-8")
    quietsum("run", folder / "run.toml", "--name", "run", "--workspace", folder / "w")
    quietsum("report", "run", "--workspace", folder / "w", "--pack", folder / "out.zip")
    yield folder


@pytest.fixture
def content(place: Path) -> bytes:
    return (place / "out.zip").read_bytes()


def test_an_honest_pack_holds_and_other_programs_can_open_it(place: Path, content: bytes) -> None:
    found = check_pack_file(content)
    assert [name for name, _ in found.unchecked] == ["key"]
    assert {"pack", "texts", "ledger", "file"} <= {name for name, _ in found.checked}
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == unpack(content)
    done = quietsum("report", "--verify", place / "out.zip", "--key", found.fingerprint)
    assert "NOT CHECKED" not in done.stdout


def test_it_holds_everything_that_leaves_the_house(content: bytes) -> None:
    files = unpack(content)
    assert set(files) == {
        "MANIFEST.json", "README.md", "report.json", "report.html", "ledger-export.jsonl", "guarantee.md",
        "guarantee.json", "plan.toml", "model.safetensors", VERIFIER, "views/dp-deployments-registry.yaml",
        "views/nist-sp-800-226.md", "views/satre-output-control.md", "views/model-card.md",
    }  # fmt: skip
    listed = {one["name"]: one["sha256"] for one in json.loads(files["MANIFEST.json"])["files"]}
    assert listed == {name: hashlib.sha256(one).hexdigest() for name, one in files.items() if name != "MANIFEST.json"}
    assert b"run.db" not in content and b"operator_only" not in files["report.json"]


def test_equal_runs_give_equal_bytes(place: Path, content: bytes, tmp_path: Path) -> None:
    quietsum("report", "run", "--workspace", place / "w", "--pack", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == content


def test_the_verifier_in_it_is_the_packages_own_and_another_one_is_named(place: Path, content: bytes) -> None:
    files = unpack(content)
    assert files[VERIFIER] == own_verifier()
    compile(own_verifier(), "verifier.py", "exec")
    files[VERIFIER] = b"print('all is well')\n"
    found = check_pack_file(signed_anew(files, place))
    assert "verifier" in [name for name, _ in found.unchecked]


def test_what_a_run_does_not_know_is_left_open_and_the_edition_is_named(content: bytes) -> None:
    files = unpack(content)
    for name, edition in {
        "views/dp-deployments-registry.yaml": "3e9c812", "views/satre-output-control.md": "SATRE 2.0.1",
        "views/nist-sp-800-226.md": "could not be read", "views/model-card.md": "no text was read",
    }.items():  # fmt: skip
        text = " ".join(files[name].decode().split())
        assert edition in text and OPEN in text, name


def test_nists_view_answers_by_the_sections_of_the_edition_that_was_read(content: bytes) -> None:
    text = unpack(content)["views/nist-sp-800-226.md"].decode()
    heads = re.findall(r"^## (\d\.\d)", text, flags=re.M)
    assert heads == ["2.2", "2.3", "2.4", "2.5", "2.6", "3.1", "3.2", "3.3", "3.4", "4.1", "4.2", "4.3", "4.4", "4.5"]
    assert "initial public draft of December 2023" in text and "final edition (March 2025) could not be" in text
    for part in text.split("\n## ")[1:]:
        assert len(part.split("\n\n", 1)[1].split()) > 5, part


def signed_anew(files: dict[str, bytes], place: Path) -> bytes:
    """A pack of other files, signed by the ledger's own key."""
    with Ledger.open(place / "w" / "ledger.db", read_only=True) as ledger:
        key = load_key(place / "w" / "ledger.db", ledger.identity.public_key)
    others = {name: one for name, one in files.items() if name != "MANIFEST.json"}
    listed = [
        {"name": name, "bytes": len(one), "sha256": hashlib.sha256(one).hexdigest()} for name, one in others.items()
    ]
    said: dict[str, Any] = {"format": MANIFEST, "run": "run", "quietsum": "0", "files": listed}
    signature = key.sign(message_to_sign(message_of(said, MANIFEST)))
    said["signature"] = {
        "format": MANIFEST, "algorithm": "Ed25519", "public_key": key.public.hex, "signature": signature
    }  # fmt: skip
    return pack({**others, "MANIFEST.json": render(said)})


# --------------------------------------------------------------------------------------------------- flipped bytes


@pytest.mark.parametrize("stride", [211, pytest.param(3, marks=pytest.mark.long)])
def test_a_flipped_bit_anywhere_in_the_pack_is_found(content: bytes, stride: int) -> None:
    check_pack(content)
    quiet = []
    for place in range(0, len(content), stride):
        other = bytearray(content)
        other[place] ^= 1 << (place % 8)
        try:
            check_pack(bytes(other))
        except Broken:
            continue
        quiet.append(place)
    assert quiet == []


def test_the_control_a_check_of_the_manifest_alone_misses_the_archives_own_bytes(content: bytes) -> None:
    """The year in an entry's header changes no file; a program that only reads files does not see it."""
    other = bytearray(content)
    other[12] ^= 2
    with zipfile.ZipFile(io.BytesIO(bytes(other))) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == unpack(content)
    with pytest.raises(Broken):
        check_pack(bytes(other))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "report.html", "guarantee.md", "ledger-export.jsonl", "views/model-card.md"]
)
def test_an_exchanged_file_is_found(content: bytes, name: str) -> None:
    files = unpack(content)
    files[name] += b" "
    with pytest.raises(CorruptState, match="not the file that MANIFEST"):
        check_pack_file(pack(files))


@pytest.mark.parametrize(
    ("name", "problem"),
    [("model.safetensors", "report speaks of"), ("ledger-export.jsonl", "ledger"),
     *((name, "does not say what report.json says") for name in (
         "report.html", "views/model-card.md", "views/satre-output-control.md", "guarantee.md", "guarantee.json",
         "README.md",
     ))],
)  # fmt: skip
def test_an_exchanged_file_is_found_even_where_its_maker_signs_anew(
    place: Path, content: bytes, name: str, problem: str
) -> None:
    files = unpack(content)
    files[name] += b"\n"
    with pytest.raises(CorruptState, match=problem):
        check_pack_file(signed_anew(files, place))


@pytest.mark.parametrize("name", ["report.html", "views/model-card.md", "guarantee.md", "README.md"])
def test_a_text_that_its_maker_left_out_or_a_program_that_he_added_is_found(
    place: Path, content: bytes, name: str
) -> None:
    files = unpack(content)
    check_pack_file(signed_anew(dict(files), place))
    with pytest.raises(CorruptState, match="is missing"):
        check_pack_file(signed_anew({one: text for one, text in files.items() if one != name}, place))
    with pytest.raises(CorruptState, match=r"does not speak of 'setup\.sh'"):
        check_pack_file(signed_anew({**files, "setup.sh": b"echo"}, place))


@pytest.mark.parametrize("change", [(b"rounds = 3", b"rounds = 2"), (b"[", b"[["), (b"\n", b"\xff\n")])
def test_another_plan_in_the_pack_is_found(place: Path, content: bytes, change: tuple[bytes, bytes]) -> None:
    files = unpack(content)
    assert change[0] in files["plan.toml"]
    files["plan.toml"] = files["plan.toml"].replace(*change, 1)
    with pytest.raises(CorruptState, match=r"plan\.toml is not the plan"):
        check_pack_file(signed_anew(files, place))


def test_texts_of_another_version_are_not_compared_and_said_not_to_be(place: Path, content: bytes) -> None:
    """Or a maker would state another version to have a page that lies."""
    files = unpack(content)
    files["report.json"] = report_anew({**json.loads(files["report.json"]), "version": "0.0.1"}, own_key(place))
    files["report.html"] = b"all is well"
    assert "report.html" in dict(check_pack_file(signed_anew(files, place)).unchecked)["texts"]


@pytest.mark.parametrize("change", [
    {"artefacts": "x"}, {"artefacts": ["x"]}, {"artefacts": 3}, {"artefacts": [{"file": ["a"], "sha256": "0"}]},
    {"ledger": "x"}, {"ledger": {"head": ["x"]}},
])  # fmt: skip
def test_a_signed_report_of_odd_kinds_in_a_pack_is_one_line(
    place: Path, content: bytes, change: dict[str, Any], tmp_path: Path
) -> None:
    files = unpack(content)
    files["report.json"] = report_anew({**json.loads(files["report.json"]), **change}, own_key(place))
    path = tmp_path / "odd.zip"
    path.write_bytes(signed_anew(files, place))
    with pytest.raises(CorruptState):
        check_pack_file(path.read_bytes())
    assert verify_alone([str(path)]) == 4


def test_a_missing_or_an_added_file_is_found(content: bytes) -> None:
    for change in ({"views/model-card.md": None}, {"extra.txt": b"more"}):
        files = {name: one for name, one in {**unpack(content), **change}.items() if one is not None}
        with pytest.raises(CorruptState, match="differ in"):
            check_pack_file(pack(files))


# ---------------------------------------------------------------------------------------------- hostile archives


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        for name, one in files.items():
            made.writestr(name, one)
    return target.getvalue()


def hostile(content: bytes) -> dict[str, bytes]:
    files = unpack(content)
    bomb = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0x21, 0, 20, 0xFFFFFFFF, 4, 0)
    lying = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0x21, 0, 0xFFFFFFFF, 0xFFFFFFFF, 4, 0)
    return {
        "another program's": zipped(files),
        "compressed": zipped(files, zipfile.ZIP_DEFLATED),
        "a bomb": b"PK\x03\x04" + bomb + b"bomb" + bytes(20),
        "a size beyond the end": b"PK\x03\x04" + lying + b"long" + bytes(20),
        "up the tree": pack({**files, "../../etc/passwd": b"x"}),
        "an absolute name": pack({**files, "/etc/passwd": b"x"}),
        "a hidden name": pack({**files, ".ssh": b"x"}),
        "a folder of its own": pack({**files, "views/../x": b"x"}),
        "bytes behind": content + b"\0",
        "bytes before": b"\0" + content,
        "two archives": content + content,
        "many files": pack({f"f{number}": b"" for number in range(100)}),
        "cut off": content[:-30],
        "a header alone": b"PK\x03\x04",
        "only an end": pack({}),
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["another program's", "compressed", "a bomb", "a size beyond the end", "up the tree", "an absolute name",
     "a hidden name", "a folder of its own", "bytes behind", "bytes before", "two archives", "many files", "cut off",
     "a header alone", "only an end"],
)  # fmt: skip
def test_a_hostile_archive_is_refused_and_nothing_is_written(content: bytes, kind: str, tmp_path: Path) -> None:
    other = hostile(content)[kind]
    with pytest.raises(Broken):
        unpack(other)
    (tmp_path / "out.zip").write_bytes(other)
    done = invoke("report", "--verify", tmp_path / "out.zip")
    assert done.exit_code == 4 and done.output.count("\n") == 1
    assert verify_alone([str(tmp_path / "out.zip")]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["out.zip"]


def test_a_name_that_stands_twice_is_refused(content: bytes) -> None:
    files = unpack(content)
    one = pack({"a.txt": b"1"})
    entry = one[: one.index(b"PK\x01\x02")]
    with pytest.raises(Broken, match="stands twice"):
        unpack(entry + entry + pack(files))


def test_a_run_that_released_nothing_has_no_pack(tmp_path: Path) -> None:
    place = shutil.copytree(Path(__file__).parents[1] / "old_books" / "before_rooms", tmp_path / "books")
    for path in place.glob("workspace/ledger.db*"):
        path.chmod(0o600)
    done = invoke("report", "stopped", "--workspace", place / "workspace", "--pack", tmp_path / "out.zip")
    assert done.exit_code == 2 and "nothing to pack" in done.output and not (tmp_path / "out.zip").exists()
    quietsum("report", "asked", "--workspace", place / "workspace", "--pack", tmp_path / "asked.zip")
    quietsum("report", "--verify", tmp_path / "asked.zip")
    assert verify_alone([str(tmp_path / "asked.zip")]) == 0
