"""The way to a ledger on another machine: encrypted, to a server that proves itself, or not gone at all.

The PostgreSQL that the tests bring along knows no TLS, so a small front speaks it in the server's place: it answers the
client's request for TLS as PostgreSQL does and passes on what comes out of it. The client's side, libpq, is real.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledger.postgres import server
from quietsum.cli.app import app
from quietsum.errors import QuietsumError
from quietsum.identity.certificates import Credentials, make_authority, make_server
from quietsum.ledger.stores.postgres import PostgresStore, complete_address, read_address
from quietsum.ledger.stores.protocol import StoreFailed

WANTS_TLS = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
REFUSAL = b"SFATAL\0VFATAL\0C28000\0Mno pg_hba.conf entry for this host, no encryption\0\0"


class Front:
    """A server with TLS on a loopback port, and a plain one behind it; who comes without TLS is sent away."""

    def __init__(self, folder: Path, authority: Credentials) -> None:
        identity = make_server(authority, ["db.test"])
        (folder / "server.crt").write_bytes(identity.certificate)
        (folder / "server.key").write_bytes(identity.key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.encrypted = self.plain = 0
        """How many connections came each way."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                client = self._socket.accept()[0]
                threading.Thread(target=self._greet, args=(client,), daemon=True).start()

    def _greet(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.settimeout(20)
            if client.recv(8, socket.MSG_WAITALL) != WANTS_TLS:
                self.plain += 1
                client.sendall(b"E" + (len(REFUSAL) + 4).to_bytes(4, "big") + REFUSAL)
                return
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as channel,
                socket.socket(socket.AF_UNIX) as behind,
            ):
                self.encrypted += 1
                behind.connect(f"{server().folder}/.s.PGSQL.5432")
                self._pass_on(channel, behind)

    @staticmethod
    def _pass_on(channel: ssl.SSLSocket, behind: socket.socket) -> None:
        while True:
            for ready in select.select([channel, behind], [], [])[0]:
                data = ready.recv(1 << 16)
                while isinstance(ready, ssl.SSLSocket) and ready.pending():
                    data += ready.recv(1 << 16)
                if not data:
                    return
                (behind if ready is channel else channel).sendall(data)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    if server().folder is None:
        pytest.skip("the server of QUIETSUM_TEST_POSTGRES is not ours to stand before")
    authority = make_authority()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "other.crt").write_bytes(make_authority().certificate)
    found = Front(tmp_path, authority)
    yield found
    found.end()


def through(front: Front, more: str, name: str = "db.test") -> str:
    schema = server().schema().split("schema=")[1]
    return f"postgresql://postgres@{name}:{front.port}/postgres?hostaddr=127.0.0.1&schema={schema}&{more}"


# -------------------------------------------------------------------------------------- real handshakes


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
def test_a_ledger_behind_tls_is_written_where_the_authority_is_ours(front: Front, tmp_path: Path, mode: str) -> None:
    store = PostgresStore(through(front, f"sslmode={mode}&sslrootcert={tmp_path}/ca.crt"), create=True)
    with store.transaction():
        pass
    assert store.head() is None and store._alive().pgconn.ssl_in_use
    store.close()
    assert (front.encrypted, front.plain) == (1, 0)


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("db.test", "sslmode=verify-full&sslrootcert={0}/other.crt", "certificate verify failed"),
        ("db.test", "sslmode=verify-ca&sslrootcert={0}/other.crt", "certificate verify failed"),
        ("db.test", "sslmode=verify-full&sslrootcert={0}/none.crt", "does not exist"),
        ("elsewhere.test", "sslmode=verify-full&sslrootcert={0}/ca.crt", "does not match host name"),
    ],
)
def test_a_server_that_cannot_prove_itself_is_one_sentence_and_exit_code_2(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPASSWORD", "hush-hush")
    address = through(front, more.format(tmp_path), name)
    with pytest.raises(StoreFailed, match=f"(?s)over TLS .*{why}.*nothing was recorded.*sslrootcert=") as caught:
        PostgresStore(address, create=True)
    assert "change sslmode" not in str(caught.value), "no advice to check less"
    Path("books").mkdir()
    Path("books/ledger.db.url").write_text(address, encoding="utf-8")
    monkeypatch.setenv("QUIETSUM_LEDGER_URL", address)
    answer = CliRunner().invoke(app, ["ledger", "show", "--workspace", "books"])
    assert answer.exit_code == 2 and "nothing was recorded" in " ".join(answer.output.split())
    assert "hush" not in answer.output and "Traceback" not in answer.output


def test_the_control_a_name_that_is_not_in_the_certificate_passes_where_nobody_asks(
    front: Front, tmp_path: Path
) -> None:
    more = f"sslmode=verify-ca&sslrootcert={tmp_path}/ca.crt"
    PostgresStore(through(front, more, "elsewhere.test"), create=True).close()


def test_a_server_that_takes_only_tls_sends_others_away(front: Front) -> None:
    with pytest.raises(StoreFailed, match="no encryption"):
        PostgresStore(through(front, "sslmode=disable"), create=True)
    assert (front.encrypted, front.plain) == (0, 1)


# ---------------------------------------------------------------------------- what is refused before it is dialled


def mode(address: str) -> str | None:
    found = read_address(address)
    chosen = found.settings(read_only=True, completed=complete_address(found)).get("sslmode")
    return None if chosen is None else str(chosen)


def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    (tmp_path / "services").write_text("\n".join(("[books]", "dbname=books", *lines, "")), encoding="utf-8")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))


def test_where_nothing_is_stated_another_machine_must_prove_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGCHANNELBINDING"):
        monkeypatch.delenv(name, raising=False)
    assert mode("postgresql://ward@db.test/books") == "verify-full"
    assert mode("postgresql://ward@192.0.2.7/books?sslmode=verify-ca") == "verify-ca"
    assert mode("host=/run/postgresql,db.test dbname=books") == "verify-full", "one of two is enough"
    assert mode("host=db.test,localhost hostaddr=,127.0.0.1") == "verify-full", "the first one has no number"
    assert mode("host=db.test hostaddr=127.0.0.1") is None, "a tunnel's end on this machine"
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.7")
    assert mode("dbname=books") == "verify-full"


@pytest.mark.parametrize("weak", ["disable", "allow", "prefer", "nonsense"])
def test_a_way_in_the_clear_is_refused_wherever_it_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weak: str
) -> None:
    with pytest.raises(QuietsumError, match="not encrypted"):
        mode(f"host=192.0.2.7 sslmode={weak}")
    if weak == "prefer":  # outside of the address nobody can tell it from libpq's own default
        services(tmp_path, monkeypatch, "host=192.0.2.7", "sslmode=prefer")
        assert mode("service=books") == "verify-full"
        return
    services(tmp_path, monkeypatch, "host=192.0.2.7", f"sslmode={weak}")
    with pytest.raises(QuietsumError, match="not encrypted"):
        PostgresStore("service=books")
    monkeypatch.setenv("PGSSLMODE", weak)
    with pytest.raises(QuietsumError, match="not encrypted"):
        mode("host=192.0.2.7")


def test_a_service_file_is_judged_like_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services(tmp_path, monkeypatch, "host=192.0.2.7")
    assert mode("service=books") == "verify-full"
    monkeypatch.setenv("PGSERVICE", "books")
    assert mode("user=ward") == "verify-full"
    services(tmp_path, monkeypatch, "host=/run/postgresql")
    assert mode("service=books") is None
    with pytest.raises(StoreFailed, match="none-such"):
        PostgresStore("service=none-such")


def test_encryption_alone_does_not_do_since_anybody_could_answer(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QuietsumError, match="anybody could answer"):
        mode("host=192.0.2.7 sslmode=require")
    assert mode("host=192.0.2.7 sslmode=require channel_binding=require") == "require"
    services(tmp_path, monkeypatch, "host=192.0.2.7", "sslmode=require")
    with pytest.raises(QuietsumError, match="anybody could answer"):
        mode("service=books")
    # a server that asks for no password cannot be bound to the channel, so it is not believed
    with pytest.raises(StoreFailed, match="channel binding"):
        PostgresStore(through(front, "sslmode=require&channel_binding=require"), create=True)


def test_looking_at_an_address_dials_nobody(front: Front) -> None:
    found = complete_address(read_address(f"host=127.0.0.1 port={front.port} sslmode=require"))
    assert (found["host"], found["sslmode"]) == ("127.0.0.1", "require")
    assert (front.encrypted, front.plain) == (0, 0)


def test_a_kerberos_ticket_at_hand_does_not_replace_tls() -> None:
    there, stated = (read_address(f"postgresql://ann@db.example/books{more}") for more in ("", "?gssencmode=prefer"))
    assert there.settings(read_only=True, completed=complete_address(there))["gssencmode"] == "disable"
    assert (
        stated.settings(read_only=True, completed=complete_address(stated))["gssencmode"] == "prefer"
    )  # the owner's word
