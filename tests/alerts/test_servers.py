"""Alerts reach real servers on loopback, and no trouble with a server reaches a run."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alerts.mailbox import Hook, MailServer, certificate, context_of, serving
from quietsum.alerts import Alert, AlertKind as Kind, Audience, Limits, Sender, Severity, Subject, sending as module
from quietsum.alerts.servers import SIGNATURE, Email, EmailSettings, Webhook, WebhookSettings
from quietsum.alerts.sinks import Refusal
from quietsum.errors import InvalidParameter

PASSWORD = "geheim-42"
NAMED = Alert(
    kind=Kind.DROP_OUTS, severity=Severity.WARNING, sentence="Basel was lost 3 times in a row", run="visits", round=7,
    subject_kind=Subject.PARTY, subject="Basel", statistic="rounds lost in a row", value=3, threshold=3,
)  # fmt: skip
CHANCE = Alert(
    kind=Kind.CHANCE, severity=Severity.WARNING, sentence="like a coin, says Basel", run="visits", round=20,
    subject_kind=Subject.MODEL, statistic="auc", value=0.5, threshold=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)


def mail(port: int, **more: Any) -> EmailSettings:
    usual = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "q@example.org", "to": ("ann@b.example",)}
    return EmailSettings(**{**usual, "audience": Audience.OPERATOR, "timeout": 5.0, **more})


def hook(port: int, **more: Any) -> WebhookSettings:
    usual = {"url": f"http://127.0.0.1:{port}/in?room=4", "audience": Audience.OPERATOR, "timeout": 5.0}
    return WebhookSettings(**{**usual, **more})


def send(sink: Any, *alerts: Alert) -> dict[str, int]:
    with Sender([sink], limits=Limits(patience=5)) as sender:
        sender.send(*alerts)
        return sender.close()


# ------------------------------------------------------------------------------------------------- e-mail


@pytest.mark.parametrize("security", ["none", "starttls", "tls"])
def test_a_mail_arrives_whole_by_every_way(paths: tuple[Path, Path], security: str) -> None:
    context = None if security == "none" else context_of(paths)
    login = {} if security == "none" else {"user": "ann", "password": PASSWORD}
    with serving(MailServer(context=context, tls_first=security == "tls", **login)) as server:
        secrets = {"user": "ann", "password_env": "X"} if login else {}
        sink = Email(mail(server.port, security=security, ca=str(paths[0]), **secrets), password=PASSWORD)
        assert send(sink, NAMED) == {}
    sender, to, message = server.mails[0]
    assert "q@example.org" in sender and "ann@b.example" in to[0]
    assert message["Subject"] == "[quietsum] warning: drop-outs in visits" and message["Auto-Submitted"]
    text = message.get_content()
    assert "drop-outs, round 7 of visits: Basel was lost 3 times in a row" in text and "operator alone" in text
    assert server.encrypted == [security != "none"]


def test_others_get_a_mail_without_a_name_or_none(paths: tuple[Path, Path]) -> None:
    with serving(MailServer()) as server:
        send(Email(mail(server.port, audience=Audience.OTHERS)), NAMED, CHANCE)
    assert len(server.mails) == 1 and "Basel" not in server.mails[0][2].as_string()
    assert "the model is no better than chance: auc 0.5" in server.mails[0][2].get_content()


def test_starttls_is_not_given_up_for_a_server_that_does_not_offer_it() -> None:
    with serving(MailServer()) as server:
        sink = Email(mail(server.port, security="starttls"))
        with pytest.raises(Refusal, match="no STARTTLS"):
            sink.send(NAMED, 0)
    assert server.mails == [] and "MAIL" not in server.commands


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_server_whose_certificate_nobody_signed_gets_neither_password_nor_mail(
    paths: tuple[Path, Path], security: str
) -> None:
    with serving(MailServer(context=context_of(paths), tls_first=security == "tls", user="a", password="b")) as server:
        sink = Email(mail(server.port, security=security, user="a", password_env="X"), password="b")
        with pytest.raises(ssl.SSLError):
            sink.send(NAMED, 0)
    assert "AUTH" not in server.commands and server.mails == []


@pytest.mark.parametrize(
    ("refuses", "kind"),
    [("MAIL 550", Refusal), ("RCPT 550", Refusal), ("DATA 554", Refusal), ("MAIL 451", ConnectionError),
     ("RCPT 450", ConnectionError), ("DATA 452", ConnectionError)],
)  # fmt: skip
def test_a_refusal_for_good_and_trouble_that_may_pass_are_told_apart(refuses: str, kind: type[Exception]) -> None:
    with serving(MailServer(refuses=refuses)) as server, pytest.raises(kind, match=refuses.split()[1]):
        Email(mail(server.port)).send(NAMED, 0)


def test_a_wrong_password_is_a_refusal_that_does_not_quote_it(
    paths: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(MailServer(context=context_of(paths), user="ann", password="right")) as server:
        chosen = mail(server.port, security="starttls", ca=str(paths[0]), user="ann", password_env="X")
        sink = Email(chosen, password=PASSWORD)
        assert send(sink, NAMED) == {sink.name: 1}
    assert "535" in caplog.text and PASSWORD not in caplog.text and PASSWORD not in repr(sink)


def test_no_alert_can_add_a_header_or_a_recipient() -> None:
    evil = dataclasses.replace(NAMED, run="x\r\nBcc: eve@example.org", sentence="a\r\n.\r\nRCPT TO:<eve@example.org>")
    with serving(MailServer()) as server:
        send(Email(mail(server.port)), evil)
    (_, to, message) = server.mails[0]
    assert len(to) == 1 and message["Bcc"] is None and server.commands.count("RCPT") == 1


# ------------------------------------------------------------------------------------------------- webhook


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_post_is_json_and_signed(paths: tuple[Path, Path], scheme: str) -> None:
    with serving(Hook(context=context_of(paths) if scheme == "https" else None)) as server:
        chosen = hook(server.port, url=f"{scheme}://127.0.0.1:{server.port}/in?room=4", ca=str(paths[0]))
        assert send(Webhook(chosen, secret=PASSWORD), NAMED) == {}
    path, headers, body = server.posts[0]
    assert path == "/in?room=4" and headers["Content-Type"] == "application/json"
    values = json.loads(body)
    assert Alert.from_dict(values["alert"]) == NAMED and values["held_back"] == 0 and "Basel" in values["text"]
    assert headers[SIGNATURE] == "sha256=" + hmac.new(PASSWORD.encode(), body, hashlib.sha256).hexdigest()


def test_others_get_a_post_without_a_name_or_none() -> None:
    with serving(Hook()) as server:
        send(Webhook(hook(server.port, audience=Audience.OTHERS)), NAMED, CHANCE)
    assert len(server.posts) == 1 and b"Basel" not in server.posts[0][2]
    assert SIGNATURE not in server.posts[0][1]


def test_trouble_that_may_pass_is_tried_again_and_a_refusal_is_not() -> None:
    for statuses, posts, lost in (((503, 429, 200), 3, 0), ((404,), 1, 1), ((400,), 1, 1)):
        with serving(Hook(*statuses)) as server:
            sink = Webhook(hook(server.port))
            sender = Sender([sink])
            sender.send(NAMED)
            for _ in range(500):
                if len(server.posts) >= posts:
                    break
                time.sleep(0.01)
            assert sender.close() == ({sink.name: lost} if lost else {})
        assert len(server.posts) == posts, statuses


def test_a_redirection_is_not_followed() -> None:
    with serving(Hook(307)) as server:
        with pytest.raises(Refusal, match="307"):
            Webhook(hook(server.port)).send(NAMED, 0)
        assert [path for path, _, _ in server.posts] == ["/in?room=4"]


def test_an_unknown_certificate_is_not_taken(paths: tuple[Path, Path]) -> None:
    with serving(Hook(context=context_of(paths))) as server, pytest.raises(ssl.SSLError):
        Webhook(hook(server.port, url=f"https://127.0.0.1:{server.port}/")).send(NAMED, 0)
    assert server.posts == []


# ------------------------------------------------------------------------------- servers that hang, lie or are gone


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A server that takes a connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    yield port


@pytest.mark.parametrize("place", [silent, nobody])
@pytest.mark.parametrize("make", [lambda port: Email(mail(port)), lambda port: Webhook(hook(port))])
def test_a_server_that_hangs_or_is_gone_costs_the_stated_patience_at_the_end_and_nothing_before(
    caplog: pytest.LogCaptureFixture, place: Any, make: Any
) -> None:
    with place() as port:
        sender = Sender([make(port)], limits=Limits(patience=0.3))
        before = time.perf_counter()
        for _ in range(20):
            sender.send(NAMED)
        assert time.perf_counter() - before < 3  # sinks wait 5 seconds each: twenty calls would take a hundred
        lost = sender.close()
        assert sum(lost.values()) == 5 and time.perf_counter() - before < 4  # five of a kind, the others are held back
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(told) <= 2  # that it does not answer, once, and that five were not sent


def test_what_is_no_http_at_all_is_trouble_that_may_pass() -> None:
    with serving(MailServer()) as server, pytest.raises(ConnectionError, match=r"makes sense|refused|reset|aborted"):
        Webhook(hook(server.port)).send(NAMED, 0)


# ------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"security": "none", "host": "mail.example.org"}, "read along"), ({"security": "ssl"}, "starttls"),
     ({"user": "ann"}, "belong together"), ({"password_env": "X"}, "belong together"),
     ({"user": "a", "password_env": "X", "password_file": "y"}, "stands beside"),
     ({"user": "a", "password_env": "my secret!"}, "name the variable"),
     ({"to": ()}, "names no address"), ({"to": ("Ann <ann@b.example>",)}, "no address"),
     ({"sender": "x\n@y"}, "no address"), ({"host": "a b"}, "no server"), ({"port": 70000}, "no port"),
     ({"timeout": 0}, "greater than 0")],
)  # fmt: skip
def test_a_mail_server_that_makes_no_sense_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told) as caught:
        mail(**{"port": 587, **wrong})
    assert "secret!" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [("http://alerts.example.org/x", "read along"), ("https://a:geheim@b.example/", "holds a password"),
     ("ftp://b.example/", "no address"), ("https:///x", "no address"), ("https://b.example:99999/", "no address"),
     ("https://b.example/a b", "no address"), ("nonsense", "no address")],
)  # fmt: skip
def test_an_address_that_makes_no_sense_is_refused_and_its_secrets_are_not_quoted(url: str, told: str) -> None:
    with pytest.raises(InvalidParameter, match=told) as caught:
        hook(1, url=url)
    assert "geheim" not in str(caught.value)
