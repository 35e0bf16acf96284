"""Certificates of sites: who shows none of the right authority is not heard, and who shows one is known by his key."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.flower.trial import collect, transport, until
from quietsum.cli.app import app
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.flower.flwr_calls import show_certificate, trust_keys
from quietsum.federation.flower.node import serve_node
from quietsum.federation.flower.superlink import SuperLink
from quietsum.identity.certificates import Credentials, check_server, make_authority, make_client, read_certificates
from quietsum.identity.keyring import (
    add_party,
    admit_party,
    check_serving,
    inspect_keyring,
    make_keyring,
    make_site_keys,
)
from quietsum.identity.nodekeys import read_node_key, read_parties, read_public_key

NAMES = ("Basel", "Porto", "Zurich")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutual") / "keys"
    make_keyring(folder, servers=(), parties=NAMES)
    (folder / "Porto" / "node.crt").unlink()
    key = read_public_key((folder / "Zurich" / "node.pub").read_bytes(), where="node.pub")
    (folder / "Zurich" / "node.crt").write_bytes(make_client(make_authority(), "Zurich", key))  # of somebody else
    return folder


@pytest.fixture(scope="module")
def link(keys: Path) -> Iterator[SuperLink]:
    with SuperLink(
        keys.parent / "link",
        certificate=keys / "server.crt",
        key=keys / "server.key",
        authority=keys / "ca.crt",
        clients=keys / "clients.crt",
    ) as made:
        made.admit(read_parties(keys / "parties.toml"))
        yield made


@contextlib.contextmanager
def site(link: SuperLink, folder: Path) -> Iterator[None]:
    stop = threading.Event()
    running = threading.Thread(
        target=serve_node,
        args=(bytes.upper,),
        kwargs={
            "address": link.address,
            "root_certificate": folder / "ca.crt",
            "node_key": folder / "node.key",
            "stop": stop,
        },
    )
    running.start()
    try:
        yield
    finally:
        stop.set()
        running.join(300)
        assert not running.is_alive()


@pytest.mark.slow
def test_a_site_with_its_certificate_is_heard(link: SuperLink, keys: Path) -> None:
    with site(link, keys / "Basel"), transport(link) as carrier:
        until(carrier.nodes)
        message = carrier.send(carrier.nodes()[0], b"hello", lasting=300)
        assert collect(carrier, 1)[message].content == b"HELLO"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [("Porto", "put node.crt beside node.key"), ("Zurich", "does not answer")])
def test_a_site_without_one_of_the_right_authority_is_not(
    link: SuperLink, keys: Path, name: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key is in the roster, and that is not enough."""
    with caplog.at_level("WARNING", logger="quietsum"), site(link, keys / name), transport(link) as carrier:
        until(lambda: words in caplog.text)
        assert not carrier.nodes()


@pytest.mark.slow
def test_not_a_byte_of_a_stranger_is_looked_at(link: SuperLink, keys: Path) -> None:
    tls = trust_keys((keys / "ca.crt").read_text())
    with (
        socket.create_connection(("127.0.0.1", link.port), timeout=300) as plain,
        tls.wrap_socket(plain, server_hostname="localhost") as stranger,
    ):
        said = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while found := stranger.recv(1000):  # before he has said anything
                said += found
        assert said.startswith(b"HTTP/1.1 403") and b"node.crt" in said


def test_the_holder_of_a_sites_certificate_cannot_pass_for_the_server(keys: Path, tmp_path: Path) -> None:
    roots, mine = read_certificates(keys / "ca.crt"), read_certificates(keys / "Basel" / "node.crt")
    with pytest.raises(QuietsumError):
        check_server(roots, mine, name="localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show_certificate(server, (keys / "Basel" / "node.crt").read_bytes(), read_node_key(keys / "Basel" / "node.key"))
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(OSError):
            server.wrap_socket(ours, server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    client = trust_keys((keys / "ca.crt").read_text())
    client.check_hostname = False  # it names no host either
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        client.wrap_socket(theirs, server_hostname="localhost")
    theirs.close()
    thread.join(60)
    ours.close()


def test_a_certificate_for_another_key_is_refused_before_anything_is_dialled(keys: Path, tmp_path: Path) -> None:
    for name in ("node.key", "ca.crt"):
        (tmp_path / name).write_bytes((keys / "Porto" / name).read_bytes())
    (tmp_path / "node.key").chmod(0o600)
    for content in ((keys / "Basel" / "node.crt").read_bytes(), b"no certificate"):
        (tmp_path / "node.crt").write_bytes(content)
        with pytest.raises(InvalidParameter, match=r"is no certificate for the node key"):
            serve_node(
                bytes,
                address="127.0.0.1:9",
                root_certificate=tmp_path / "ca.crt",
                node_key=tmp_path / "node.key",
                stop=threading.Event(),
            )


def test_admit_and_add_make_certificates_where_sites_are_asked_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make_keyring(folder, servers=(), parties=["Basel"])
    make_site_keys(tmp_path / "own")
    admit_party(folder, "Porto", tmp_path / "own" / "node.pub")
    add_party(folder, "Zurich")
    for name in ("Basel", "Porto", "Zurich"):
        (found,) = read_certificates(folder / name / "node.crt")
        assert found.public_key() == read_parties(folder / "parties.toml")[name]
    assert not inspect_keyring(folder).warnings
    (folder / "ca.key").rename(tmp_path / "locked-away")
    with pytest.raises(InvalidParameter, match=r"ca\.key.*is not here to sign"):
        add_party(folder, "Bern")
    assert not (folder / "Bern").exists() and "Bern" not in read_parties(folder / "parties.toml")
    (folder / "clients.crt").unlink()
    add_party(folder, "Bern")
    assert not (folder / "Bern" / "node.crt").exists()


def test_a_folder_of_keys_from_before_asks_for_none_and_a_missing_one_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make_keyring(folder, servers=(), parties=["Basel"])
    (folder / "Basel" / "node.crt").unlink()
    assert any("Basel have no node.crt" in one for one in inspect_keyring(folder).warnings)
    (folder / "clients.crt").unlink()
    assert not inspect_keyring(folder).warnings and not check_serving(folder, host="127.0.0.1")
    shown = CliRunner().invoke(app, ["keys", "pki"])
    assert "clients.crt" in shown.output and max(map(len, shown.output.splitlines())) <= 80


def test_a_key_that_is_not_the_authoritys_signs_nothing(tmp_path: Path) -> None:
    one, other = make_authority(), make_authority()
    make_site_keys(tmp_path / "own")
    key = read_public_key((tmp_path / "own" / "node.pub").read_bytes(), where="node.pub")
    with pytest.raises(QuietsumError, match="does not belong to its certificate"):
        make_client(Credentials(certificate=one.certificate, key=other.key), "Basel", key)
