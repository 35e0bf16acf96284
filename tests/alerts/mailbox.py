"""Real servers on loopback for the tests: SMTP with STARTTLS, TLS and AUTH, and HTTP with what it was sent."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.server
import ipaddress
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own root, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    paths = folder / "server.crt", folder / "server.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


class _Quiet(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is no news."""


Server = TypeVar("Server", bound=_Quiet)


class MailServer(_Quiet):
    """An SMTP server: EHLO, STARTTLS, AUTH PLAIN and LOGIN, MAIL, RCPT, DATA, QUIT; refuses what RFC 5321 refuses."""

    def __init__(
        self, *, context: ssl.SSLContext | None = None, tls_first: bool = False, user: str = "", password: str = "",
        refuses: str = "",
    ) -> None:  # fmt: skip
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.context, self.tls_first, self.refuses = context, tls_first, refuses
        self.login = (user, password)
        self.mails: list[tuple[str, list[str], EmailMessage]] = []
        self.commands: list[str] = []
        self.encrypted: list[bool] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Dialogue(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.secure = self.known = False
        if self.server.tls_first:
            self._encrypt()
        self._say("220 localhost ESMTP")
        while line := self.rfile.readline(2000):
            verb, _, rest = line.decode().strip().partition(" ")
            self.server.commands.append(verb.upper())
            if not self._answer(verb.upper(), rest):
                return

    def _answer(self, verb: str, rest: str) -> bool:
        needs_login = any(self.server.login) and not self.known
        match verb:
            case "EHLO" | "HELO":
                offers = ["localhost"]
                offers += ["STARTTLS"] if self.server.context and not self.secure else []
                offers += ["AUTH PLAIN LOGIN"] if any(self.server.login) and self.secure else []
                for offer in offers[:-1]:
                    self._say(f"250-{offer}")
                self._say(f"250 {offers[-1]}")
                self.sender, self.to = "", list[str]()
            case "STARTTLS" if self.server.context and not self.secure:
                self._say("220 go ahead")
                self._encrypt()
            case "AUTH":
                self._log_in(rest)
            case "MAIL" | "RCPT" | "DATA" if needs_login:
                self._say("530 5.7.0 Authentication required")
            case _ if verb == self.server.refuses.partition(" ")[0]:
                self._say(f"{self.server.refuses.partition(' ')[2]} no, {rest}")
            case "MAIL":
                self.sender = rest
                self._say("250 ok")
            case "RCPT":
                self.to.append(rest)
                self._say("250 ok")
            case "DATA":
                self._say("354 end with a dot")
                content = b""
                while (line := self.rfile.readline()) != b".\r\n":
                    content += line.removeprefix(b".") if line.startswith(b"..") else line
                message = message_from_bytes(content, policy=policy.default)
                assert isinstance(message, EmailMessage)
                self.server.mails.append((self.sender, self.to, message))
                self.server.encrypted.append(self.secure)
                self._say("250 taken")
            case "RSET" | "NOOP":
                self._say("250 ok")
            case "QUIT":
                self._say("221 bye")
                return False
            case _:
                self._say("502 unknown")
        return True

    def _log_in(self, rest: str) -> None:
        kind, _, first = rest.partition(" ")
        if kind == "PLAIN":
            _, user, password = base64.b64decode(first).decode().split("\0")
        else:
            if not first:
                self._say("334 VXNlcm5hbWU6")
                first = self.rfile.readline().decode()
            user = base64.b64decode(first).decode()
            self._say("334 UGFzc3dvcmQ6")
            password = base64.b64decode(self.rfile.readline()).decode()
        self.known = (user, password) == self.server.login
        self._say("235 ok" if self.known else f"535 5.7.8 not {password}")  # a rude server quotes what it was told

    def _encrypt(self) -> None:
        assert self.server.context is not None
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
        self.secure = True

    def _say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class Hook(_Quiet):
    """An HTTP server that keeps what is posted and answers with ``statuses`` one after the other, the last for ever."""

    def __init__(self, *statuses: int, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Posted)
        self.statuses, self.posts = list(statuses or (204,)), list[tuple[str, dict[str, str], bytes]]()
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Posted(http.server.BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, dict(self.headers), body))
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://127.0.0.1:{self.server.port}/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def context_of(paths: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)
    return context


# ------------------------------------------------------------------------------------------------- hostile ones

Behaviour = Callable[[socket.socket, threading.Event], None]
GREETING = b"220 localhost\r\n"


@contextlib.contextmanager
def server(behaviour: Behaviour) -> Iterator[int]:
    """A server on loopback that does ``behaviour`` with whoever calls, one at a time."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.02)

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    caller, _ = listening.accept()
                    with caller:
                        caller.settimeout(30.0)
                        behaviour(caller, over)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            over.set()
            thread.join()


def repeats(first: bytes, again: bytes, pause: float = 0.0, most: int = 1 << 40) -> Behaviour:
    """Says ``first``, waits for the client where it is its turn, then says ``again`` and ``again``."""

    def talk(caller: socket.socket, over: threading.Event) -> None:
        caller.sendall(first)
        if first == GREETING or b"HTTP" in first + again:  # it is the client's turn
            caller.recv(1 << 16)
        for _ in range(most):
            if over.wait(pause) if pause else over.is_set():
                return
            caller.sendall(again)

    return talk


def silent(caller: socket.socket, over: threading.Event) -> None:
    over.wait()
