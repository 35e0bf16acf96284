"""Alerts by e-mail and to a webhook.

Both run in a thread of their own (:mod:`quietsum.alerts.sending`), so a server may take its time. Passwords and keys
come from an environment variable or a file that the operator names, never from a plan and never from the settings
themselves, and no error quotes them. Beyond this machine nothing travels in the clear: SMTP by STARTTLS or TLS, which
is never given up for a server that does not offer it, and webhooks by https. A redirection is not followed. A whole
delivery has one deadline and one limit of bytes (:mod:`quietsum.alerts.connection`), which no server can extend.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import http.client
import ipaddress
import json
import re
import smtplib
import socket
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import cast, final
from urllib.parse import urlsplit

from quietsum.alerts.alert import Alert, Audience, Severity
from quietsum.alerts.connection import Connection, Encrypting
from quietsum.alerts.fields import MUST, OTHERS, WARNING, setting
from quietsum.alerts.sinks import Refusal, line_of
from quietsum.errors import InvalidParameter
from quietsum.validate import positive, whole_number

__all__ = ["Email", "EmailSettings", "Webhook", "WebhookSettings"]

SIGNATURE = "X-Quietsum-Signature"
"""``sha256=`` and the HMAC-SHA256 of the body, in hexadecimal."""
_ADDRESS = re.compile(r"[^@\s<>,;:\"()\[\]\\]+@[^@\s<>,;:\"()\[\]\\]+")


_AUDIENCE = "Who reads it: operator (everything, with names of parties) or others (no name and no count of parties)."
_LEAST = "The least severity that is sent: notice, warning or critical."
_CA = "The certificate that the server's own is signed with, a PEM file; if omitted, those of this system."
_TIMEOUT = "Seconds for one delivery, from connecting to the server's last word."


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class EmailSettings:
    """``[[email]]``: an SMTP server and whom it writes to."""

    host: str = setting(MUST, "The SMTP server.")
    port: int = setting(587, "Its port.")
    security: str = setting("starttls", "starttls, tls, or none (on this machine alone).")
    user: str = setting("", "The name to log in by; if omitted, no login is made.")
    password_env: str = setting("", "The environment variable that holds the password.")
    password_file: str = setting("", "The file that holds the password, seen from this file.")
    sender: str = setting(MUST, "The address that alerts come from.")
    to: tuple[str, ...] = setting(MUST, "The addresses that alerts go to.")
    audience: Audience = setting(OTHERS, _AUDIENCE)
    least: Severity = setting(WARNING, _LEAST)
    ca: str = setting("", _CA)
    timeout: float = setting(30.0, _TIMEOUT)

    def __post_init__(self) -> None:
        if not self.host or set(self.host) & set(" \t\r\n/@?#"):
            raise InvalidParameter("host", self.host, "is no server", "write mail.example.org")
        _port(self.port)
        if self.security not in ("starttls", "tls", "none"):
            raise InvalidParameter("security", self.security, "is unknown", "choose starttls, tls or none")
        if self.security == "none" and not _here(self.host):
            problem = f"would let everybody on the way to {self.host} read along"
            raise InvalidParameter("security", "none", problem, "use starttls or tls beyond this machine")
        if bool(self.user) != bool(self.password_env or self.password_file):
            problem = "and its password belong together"
            raise InvalidParameter("user", self.user, problem, "state user and password_env or password_file, or none")
        _one_secret("password", self.password_env, self.password_file)
        for name, addresses in (("sender", (self.sender,)), ("to", self.to)):
            if not addresses:
                raise InvalidParameter(name, "[]", "names no address", 'write ["ann@example.org"]')
            for address in addresses:
                if not _ADDRESS.fullmatch(address):
                    raise InvalidParameter(name, address, "is no address", "write ann@example.org, without a name")
        positive("timeout", self.timeout)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """``[[webhook]]``: an address that alerts are posted to, as JSON."""

    url: str = setting(MUST, "Where to; https, or http on this machine.")
    secret_env: str = setting("", f"The environment variable with the key that signs what is sent ({SIGNATURE}).")
    secret_file: str = setting("", "The file with that key, seen from this file.")
    audience: Audience = setting(OTHERS, _AUDIENCE)
    least: Severity = setting(WARNING, _LEAST)
    ca: str = setting("", _CA)
    timeout: float = setting(30.0, _TIMEOUT)

    def __post_init__(self) -> None:
        written = "write https://alerts.example.org/path"
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise InvalidParameter("url", "…", "is no address", written) from None
        if parts.scheme not in ("http", "https") or not host or not self.url.isprintable() or " " in self.url:
            raise InvalidParameter("url", f"{parts.scheme}://{host}", "is no address of a webhook", written)
        if parts.username or parts.password:
            problem = "holds a password"
            raise InvalidParameter("url", f"{parts.scheme}://…@{host}", problem, "sign with secret_env or secret_file")
        if port is not None:
            _port(port)
        if parts.scheme == "http" and not _here(host):
            problem = "would let everybody on the way read along"
            raise InvalidParameter("url", f"http://{host}", problem, "use https:// beyond this machine")
        _one_secret("secret", self.secret_env, self.secret_file)
        positive("timeout", self.timeout)


@final
class Email:
    """Sends each alert as a mail of its own."""

    waits = limited = True

    def __init__(self, settings: EmailSettings, *, password: str = "", folder: Path | None = None) -> None:
        self._settings, self._password = settings, password
        self._ca = str((folder or Path()) / settings.ca) if settings.ca else None
        self.name, self.audience, self.least = f"mail by {settings.host}", settings.audience, settings.least

    def __repr__(self) -> str:  # no password in a traceback
        return f"Email({self.name!r})"

    def send(self, alert: Alert, held_back: int) -> None:
        """Deliver it; :class:`Refusal` where the server says that it never will."""
        message = self._compose(alert, held_back)
        chosen, context = self._settings, ssl.create_default_context(cafile=self._ca)
        first = context if chosen.security == "tls" else None
        connection = Connection(chosen.host, chosen.port, seconds=chosen.timeout, context=first)
        with contextlib.closing(connection):
            try:
                server = self._log_in(connection, context)
                server.send_message(message)
            except smtplib.SMTPRecipientsRefused as error:
                codes = sorted({code for code, _ in error.recipients.values()})
                raise _error_of(codes[0] if codes else 0, "the recipients") from None
            except smtplib.SMTPResponseException as error:  # what the server says may quote what it was sent
                what = "the login" if isinstance(error, smtplib.SMTPAuthenticationError) else "the mail"
                raise _error_of(error.smtp_code, what) from None
            except smtplib.SMTPNotSupportedError:
                raise Refusal("it offers no STARTTLS, or no login, and nothing is sent without") from None
            except smtplib.SMTPServerDisconnected:
                raise ConnectionError(connection.problem or "it hung up") from None
            except smtplib.SMTPException:
                raise ConnectionError("it offers no way to log in, or answers what makes no sense") from None
            with contextlib.suppress(smtplib.SMTPException, OSError):  # the mail is taken
                server.quit()

    def _log_in(self, connection: Connection, context: ssl.SSLContext) -> smtplib.SMTP:
        chosen = self._settings
        server = smtplib.SMTP(local_hostname="localhost")  # connects to nobody
        server.sock = cast(socket.socket, connection)
        code, words = server.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, words)
        if chosen.security == "starttls":
            server.starttls(context=cast(ssl.SSLContext, Encrypting(context)))
        if chosen.user:
            server.login(chosen.user, self._password)
        return server

    def _compose(self, alert: Alert, held_back: int) -> EmailMessage:
        message = EmailMessage()
        run = f" in {alert.run}" if alert.run else ""
        message["Subject"] = f"[quietsum] {alert.severity}: {alert.kind}{run}"[:200]
        message["From"], message["To"] = self._settings.sender, ", ".join(self._settings.to)
        message["Date"] = formatdate(usegmt=True)
        message["Message-ID"] = make_msgid(domain=self._settings.sender.rpartition("@")[2])
        message["Auto-Submitted"] = "auto-generated"
        lines = [line_of(alert, held_back), ""]
        lines += [f"{name}: {value}" for name, value in alert.to_dict().items() if name != "sentence"]
        if self.audience is Audience.OPERATOR:
            lines += ["", "For the operator alone: who took part stays here."]
        message.set_content("\n".join(lines) + "\n")
        return message


@final
class Webhook:
    """Posts each alert as JSON: ``{"text": …, "alert": {…}, "held_back": n}``."""

    waits = limited = True

    def __init__(self, settings: WebhookSettings, *, secret: str = "", folder: Path | None = None) -> None:
        self._settings, self._secret = settings, secret
        self._ca = str((folder or Path()) / settings.ca) if settings.ca else None
        self._parts = urlsplit(settings.url)
        self.name = f"the webhook at {self._parts.hostname}"  # what follows may be a secret
        self.audience, self.least = settings.audience, settings.least

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"

    def send(self, alert: Alert, held_back: int) -> None:
        """Post it; :class:`Refusal` where the server says that it never will."""
        values = {"text": line_of(alert, held_back), "alert": alert.to_dict(), "held_back": held_back}
        body = json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "quietsum"}
        if self._secret:
            headers[SIGNATURE] = "sha256=" + hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
        with contextlib.closing(self._connect()) as connection:
            spoken = (http.client.HTTPConnection if self._plain else http.client.HTTPSConnection)(
                str(self._parts.hostname), self._parts.port
            )  # it does not connect
            spoken.sock = cast(socket.socket, connection)
            try:
                spoken.request("POST", self._path, body=body, headers=headers)
                status = spoken.getresponse().status  # what else the server says is not read
            except http.client.HTTPException as error:
                raise ConnectionError(
                    connection.problem or f"no answer that makes sense ({type(error).__name__})"
                ) from None
        if not 200 <= status < 300:
            raise _error_of(status, "the alert", passing=(408, 425, 429))

    @property
    def _plain(self) -> bool:
        return self._parts.scheme == "http"

    def _connect(self) -> Connection:
        context = None if self._plain else ssl.create_default_context(cafile=self._ca)
        port = self._parts.port or (80 if self._plain else 443)
        return Connection(str(self._parts.hostname), port, seconds=self._settings.timeout, context=context)

    @property
    def _path(self) -> str:
        query = f"?{self._parts.query}" if self._parts.query else ""
        return (self._parts.path or "/") + query


def _error_of(code: int, what: str, passing: tuple[int, ...] = ()) -> Exception:
    """The error for a server's answer. SMTP: 4xx may pass, 5xx not; HTTP says it the other way round."""
    words = f"it does not take {what} (it answers {code})"
    if passing:
        return ConnectionError(words) if code >= 500 or code in passing else Refusal(words)
    return Refusal(words) if code >= 500 else ConnectionError(words)


def _one_secret(name: str, env: str, file: str) -> None:
    if env and file:
        raise InvalidParameter(f"{name}_env", env, f"stands beside {name}_file", "state one of them")
    if env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", env):
        problem = "is no name of an environment variable"
        raise InvalidParameter(f"{name}_env", "…", problem, f"name the variable, not the {name} itself")


def _port(port: int) -> None:
    if not 0 < whole_number("port", port, 1) < 65536:
        raise InvalidParameter("port", port, "is no port", "587, say")


def _here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
