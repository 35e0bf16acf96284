"""A folder of keys grows and is never overwritten, whenever the power fails and whoever changes it at the same time."""

from __future__ import annotations

import datetime
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quietsum import failpoints
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.files import DiskFull
from quietsum.identity.keyring import add_party, admit_party, folder_name, inspect_keyring, make_keyring, make_site_keys
from quietsum.identity.nodekeys import make_node_key, public_line, read_node_key, read_parties

posix = pytest.mark.skipif(os.name != "posix", reason="file modes and kills")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keyring(tmp_path / "keys", servers=["fl.example.org"], parties=["Basel", "Cleveland"])
    return tmp_path / "keys"


def test_the_layout_is_the_one_that_others_rely_on(keys: Path) -> None:
    ours = {"ca.key", "ca.crt", "clients.crt", "server.key", "server.crt", "parties.toml"}
    files = ("node.key", "node.pub", "node.crt", "ca.crt")
    theirs = {f"{party}/{file}" for party in ("Basel", "Cleveland") for file in files}
    assert set(contents(keys)) == ours | theirs
    roster = read_parties(keys / "parties.toml")
    for party in ("Basel", "Cleveland"):
        assert (keys / party / "ca.crt").read_bytes() == (keys / "ca.crt").read_bytes()
        assert (keys / party / "node.pub").read_text() == public_line(roster[party]) + "\n"
        assert read_node_key(keys / party / "node.key").public_key() == roster[party]
    assert inspect_keyring(keys).warnings == ()


@posix
def test_private_keys_are_readable_by_their_owner_only(keys: Path) -> None:
    before = os.umask(0)
    try:
        add_party(keys, "Geneva")
    finally:
        os.umask(before)
    for path in keys.rglob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    for folder in (keys, keys / "Basel", keys / "Geneva"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_nothing_that_is_there_is_overwritten(keys: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    with pytest.raises(InvalidParameter, match="exists already"):
        make_keyring(keys, servers=[], parties=["Geneva"])
    with pytest.raises(InvalidParameter, match="exists already"):
        make_site_keys(keys)
    with pytest.raises(InvalidParameter, match="already"):
        add_party(keys, "Basel")
    (keys / "Geneva").mkdir()
    (keys / "Geneva" / "note").write_text("mine")
    with pytest.raises(InvalidParameter, match="a folder here already"):
        add_party(keys, "geneva".title())
    assert {name: data for name, data in contents(tmp_path).items() if "Geneva" not in name} == before
    assert list((keys / "Geneva").iterdir()) == [keys / "Geneva" / "note"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidParameter, match="exists already"):
        make_keyring(tmp_path / "file", servers=[], parties=[])


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_keyring(tmp_path / "empty", servers=[], parties=[])
    make_keyring(tmp_path / "a" / "b", servers=[], parties=["Basel"])
    assert inspect_keyring(tmp_path / "empty").parties == ()
    assert [one.party for one in inspect_keyring(tmp_path / "a" / "b").parties] == ["Basel"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "-rf", "a:b", "CON", "nul.txt", "ca.crt", "Parties.TOML", "x.",
     "a\nb", "é" * 150, "x" * 201, "server.key"],
)  # fmt: skip
def test_names_that_are_no_plain_folder_names_are_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidParameter):
        make_keyring(tmp_path / "keys", servers=[], parties=["Basel", name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["Basel", "Zürich Nord", "site-1", "東京", "a.b", "console", "x'y"])
def test_ordinary_names_are_folder_names_and_come_back_from_the_roster(tmp_path: Path, name: str) -> None:
    assert folder_name(name) == name
    make_keyring(tmp_path / "keys", servers=[], parties=[name])
    assert list(read_parties(tmp_path / "keys" / "parties.toml")) == [name]


@pytest.mark.parametrize(
    "pair", [("Basel", "BASEL"), ("Basel", "Basel"), ("\uff22asel", "Basel"), ("straße", "STRASSE")]
)
def test_names_that_differ_only_by_their_writing_are_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidParameter, match=r"already|only by its writing"):
        make_keyring(tmp_path / "keys", servers=[], parties=pair)
    assert list(tmp_path.iterdir()) == []
    make_keyring(tmp_path / "keys", servers=[], parties=pair[:1])
    with pytest.raises(InvalidParameter, match=r"already|only by its writing"):
        add_party(tmp_path / "keys", pair[1])


def test_a_party_that_makes_its_own_key_sends_no_private_one(keys: Path, tmp_path: Path) -> None:
    line = make_site_keys(tmp_path / "own")
    assert admit_party(keys, "Own", tmp_path / "own" / "node.pub") == line
    assert public_line(read_parties(keys / "parties.toml")["Own"]) == line
    assert sorted(path.name for path in (keys / "Own").iterdir()) == ["ca.crt", "node.crt", "node.pub"]
    assert [one.private_key_here for one in inspect_keyring(keys).parties] == [True, True, False]


def test_a_key_stands_for_one_party_only(keys: Path) -> None:
    before = contents(keys)
    with pytest.raises(InvalidParameter, match="already that of Basel"):
        admit_party(keys, "Geneva", keys / "Basel" / "node.pub")
    with pytest.raises(InvalidParameter, match="private key"):
        admit_party(keys, "Geneva", keys / "Basel" / "node.key")
    with pytest.raises(InvalidParameter, match="does not exist"):
        admit_party(keys, "Geneva", keys / "nowhere.pub")
    assert contents(keys) == before


def test_what_people_wrote_into_the_roster_stays(keys: Path) -> None:
    path = keys / "parties.toml"
    path.write_text(path.read_text(encoding="utf-8") + "# agreed with Basel on the telephone", encoding="utf-8")
    add_party(keys, "Geneva")
    assert "# agreed with Basel on the telephone\n" in path.read_text(encoding="utf-8")
    assert list(read_parties(path)) == ["Basel", "Cleveland", "Geneva"]


def test_a_folder_of_an_existing_pki_needs_no_authority_key_and_starts_its_own_roster(
    keys: Path, tmp_path: Path
) -> None:
    for name in ("ca.key", "clients.crt", "parties.toml"):
        (keys / name).unlink()
    make_site_keys(tmp_path / "own")
    admit_party(keys, "Own", tmp_path / "own" / "node.pub")
    assert [one.party for one in inspect_keyring(keys).parties] == ["Own"]


def test_a_folder_without_an_authority_is_refused(tmp_path: Path) -> None:
    for act in (
        lambda: add_party(tmp_path, "Basel"),
        lambda: inspect_keyring(tmp_path),
        lambda: inspect_keyring(tmp_path / "none"),
    ):
        with pytest.raises(InvalidParameter, match=r"has no ca\.crt"):
            act()


# --------------------------------------------------------------------------------------------------- looking


def test_what_expires_soon_or_has_expired_is_told(keys: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    assert inspect_keyring(keys, now=now + datetime.timedelta(days=334)).warnings == ()
    soon = inspect_keyring(keys, now=now + datetime.timedelta(days=336)).warnings
    assert len(soon) == 2 and all("expires on" in warning for warning in soon)
    gone = inspect_keyring(keys, now=now + datetime.timedelta(days=366)).warnings
    assert len(gone) == 2 and all("has expired" in warning for warning in gone)


@posix
def test_private_keys_that_others_can_read_are_told(keys: Path) -> None:
    (keys / "ca.key").chmod(0o644)
    (keys / "Basel" / "node.key").chmod(0o640)
    told = inspect_keyring(keys).warnings
    assert len(told) == 2 and "Basel" in told[0] and "mode 640" in told[0] and "ca.key" in told[1]


def test_a_key_that_is_not_the_rosters_is_told(keys: Path) -> None:
    (keys / "Basel" / "node.key").write_bytes(make_node_key().private)
    assert "not the key that the roster holds for Basel" in inspect_keyring(keys).warnings[0]


def test_files_that_do_not_belong_together_are_refused(keys: Path, tmp_path: Path) -> None:
    make_keyring(tmp_path / "others", servers=[], parties=[])
    good = (keys / "server.key").read_bytes()
    (keys / "server.key").write_bytes((tmp_path / "others" / "server.key").read_bytes())
    with pytest.raises(QuietsumError, match=r"does not belong to server\.crt"):
        inspect_keyring(keys)
    (keys / "server.key").write_bytes(good)
    assert inspect_keyring(keys).warnings == ()
    (keys / "ca.crt").write_bytes((tmp_path / "others" / "ca.crt").read_bytes())
    with pytest.raises(QuietsumError, match="not signed by any authority"):
        inspect_keyring(keys)


# -------------------------------------------------------------------------------------- crashes and crowds

ACT = """
import os, signal, sys
from pathlib import Path
from quietsum import failpoints
from quietsum.identity.keyring import add_party, make_keyring
left = int(sys.argv[3])
def hook(place):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.install(hook)
folder = Path(sys.argv[2])
if sys.argv[1] == "make":
    make_keyring(folder, servers=[], parties=["Basel"])
else:
    add_party(folder, "Geneva")
"""


def killed_at(act: str, folder: Path, place: int) -> bool:
    """Whether the child died at its ``place``-th failpoint; False: it reached the end before."""
    done = subprocess.run([sys.executable, "-c", ACT, act, str(folder), str(place)], capture_output=True, timeout=60)
    assert done.returncode in (0, -9), done.stderr.decode()
    return done.returncode == -9


@posix
@pytest.mark.long
def test_a_kill_while_making_leaves_the_whole_folder_or_none(tmp_path: Path) -> None:
    place = 1
    while killed_at("make", folder := tmp_path / f"keys{place}", place):
        if folder.exists():
            assert inspect_keyring(folder).warnings == ()
        else:
            make_keyring(folder, servers=[], parties=["Basel"])  # nothing stands in the way of a second try
        place += 1
    assert place > 9


@posix
def test_keys_that_a_killed_make_left_are_removed_by_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert killed_at("make", folder, 4)
    (left,) = tmp_path.glob(".keys.*.part")
    assert (left / "ca.key").exists() and not folder.exists()
    others = [tmp_path / name for name in (".keys.old.abcdefgh.part", ".keys.abc.part", ".other.abcdefgh.part")]
    for other in others:
        other.mkdir()
    make_keyring(folder, servers=[], parties=["Basel"])
    assert sorted(tmp_path.glob(".*")) == sorted(others), "its own and no others"


@posix
def test_keys_that_somebody_is_just_making_are_left_alone(tmp_path: Path) -> None:
    def meanwhile(place: str) -> None:
        if place == "keys:staged":
            failpoints.install(None)
            (draft,) = tmp_path.glob(".keys.*.part")
            make_keyring(tmp_path / "keys", servers=[], parties=["Bern"])
            assert (draft / "Basel" / "node.key").exists()

    failpoints.install(meanwhile)
    try:
        with pytest.raises(InvalidParameter, match="exists already"):
            make_keyring(tmp_path / "keys", servers=[], parties=["Basel"])
    finally:
        failpoints.install(None)
    assert [one.party for one in inspect_keyring(tmp_path / "keys").parties] == ["Bern"] and not list(
        tmp_path.glob(".*")
    )


@posix
def test_a_second_try_to_add_says_how_to_go_on(keys: Path) -> None:
    place = 1
    while not (keys / "Geneva").exists():
        assert killed_at("add", keys, place)
        place += 1
    assert "Geneva" not in read_parties(keys / "parties.toml")
    with pytest.raises(InvalidParameter) as refused:
        add_party(keys, "Geneva")
    command = str(refused.value).partition("quietsum keys admit ")[2]
    assert shlex.split(command) == [str(keys), str(keys / "Geneva" / "node.pub"), "--party", "Geneva"]
    admit_party(keys, "Geneva", keys / "Geneva" / "node.pub")
    assert inspect_keyring(keys).warnings == ()


@posix
def test_a_kill_while_adding_leaves_whole_files_and_a_way_on(keys: Path) -> None:
    before = contents(keys)
    place = 1
    while killed_at("add", keys, place):
        now = {name: data for name, data in contents(keys).items() if not name.startswith(".")}
        assert {name: now[name] for name in before if name != "parties.toml"} == {
            name: data for name, data in before.items() if name != "parties.toml"
        }
        roster = read_parties(keys / "parties.toml")
        geneva = {name for name in now if name.startswith("Geneva/")}
        assert geneva in (set(), {f"Geneva/{one}" for one in ("node.key", "node.pub", "node.crt", "ca.crt")})
        if "Geneva" in roster:
            assert geneva and inspect_keyring(keys).warnings == ()
        elif geneva:
            assert "quietsum keys admit" in inspect_keyring(keys).warnings[0]
            admit_party(keys, "Geneva", keys / "Geneva" / "node.pub")
            assert inspect_keyring(keys).warnings == ()
        for name in geneva:
            (keys / name).unlink()
        if geneva:
            (keys / "Geneva").rmdir()
        (keys / "parties.toml").write_bytes(before["parties.toml"])
        place += 1
    assert place > 6
    assert "Geneva" in read_parties(keys / "parties.toml")
    add_party(keys, "Lugano")
    assert not list(keys.glob(".*")), "what a dead process left is cleared away"


@posix
def test_several_processes_that_add_at_once_lose_no_party(keys: Path) -> None:
    script = "import sys; from pathlib import Path; from quietsum.identity.keyring import add_party\n"
    script += "for n in range(4): add_party(Path(sys.argv[1]), f'site-{sys.argv[2]}-{n}')"
    crowd = [subprocess.Popen([sys.executable, "-c", script, str(keys), str(n)]) for n in range(3)]
    assert [one.wait(timeout=60) for one in crowd] == [0, 0, 0]
    assert len(read_parties(keys / "parties.toml")) == 2 + 12
    assert inspect_keyring(keys).warnings == ()


def test_a_full_disk_leaves_what_was_there(keys: Path) -> None:
    before = contents(keys)

    def full(place: str) -> None:
        if place == "keys:written":
            raise OSError(28, "No space left on device")

    failpoints.install(full)
    try:
        with pytest.raises(DiskFull, match="No space"):
            add_party(keys, "Geneva")
    finally:
        failpoints.install(None)
    assert contents(keys) == before
