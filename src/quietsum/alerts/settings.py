"""``alerts.toml`` of a workspace, and the table ``[alerts]`` of a site's ``policy.toml``: which alerts go where.

The file is the operator's. No plan can name an address, since plans come from others. But a workspace may come from
others, too, and this file names servers, variables that hold passwords and files to write to. So what leaves this
process (:attr:`Settings.reaches_out`) is used only where the user said so outside of the workspace: by
``quietsum alerts --test``, which tries every sink and remembers the file by its hash, or by naming the file in
``$QUIETSUM_ALERTS``. Commands that only look call no server. A site's policy is the site's own, and needs neither.

Unknown keys are errors that name the nearest one; all problems are listed at once. The same dataclasses that hold the
values say what they mean: :func:`reference` makes the tables of the reference page from them.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import hashlib
import json
import logging
import os
import shlex
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from quietsum.alerts.alert import Audience, Severity
from quietsum.alerts.fields import MUST, OPERATOR, WARNING, setting
from quietsum.alerts.rules import Thresholds
from quietsum.alerts.sending import Limits
from quietsum.alerts.servers import Email, EmailSettings, Webhook, WebhookSettings
from quietsum.alerts.sinks import JsonLines, Log, Sink, Terminal
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.files import read_file, read_memory, remember

__all__ = [
    "VARIABLE",
    "AlertSettings",
    "FileSettings",
    "Found",
    "TerminalSettings",
    "alert_keys",
    "find",
    "reference",
    "trust",
]

log = logging.getLogger(__name__)

VARIABLE = "QUIETSUM_ALERTS"
NAME = "alerts.toml"
TRUSTED = "alerts"
"""In the user's state folder: the hashes of the files that may be used."""
LARGEST = 1 << 20
LONGEST_SECRET = 4096


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TerminalSettings:
    """``[terminal]``: lines on standard error, or in the log of a service."""

    on: bool = setting(True, "Whether alerts are shown there.")
    least: Severity = setting(WARNING, "The least severity that is shown: notice, warning or critical.")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSettings:
    """``[[jsonl]]``: a file with one alert a line."""

    path: str = setting(MUST, "The file, seen from this one.")
    audience: Audience = setting(OPERATOR, "Who reads it: operator or others.")
    least: Severity = setting(WARNING, "The least severity that is written: notice, warning or critical.")

    def __post_init__(self) -> None:
        if not self.path.strip() or "\0" in self.path:
            raise InvalidParameter("path", self.path, "names no file", "alerts.jsonl, say")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AlertSettings:
    """All of it; what is not said is as it stands here."""

    rules: Thresholds = setting(Thresholds, "From where on something is an alert.")
    limits: Limits = setting(Limits, "How much is sent, and how long anybody waits.")
    terminal: TerminalSettings = setting(TerminalSettings, "Lines on standard error, or in a service's log.")
    jsonl: tuple[FileSettings, ...] = setting((), "Files with one alert a line.")
    email: tuple[EmailSettings, ...] = setting((), "SMTP servers and whom they write to.")
    webhook: tuple[WebhookSettings, ...] = setting((), "Addresses that alerts are posted to.")

    @property
    def reaches_out(self) -> bool:
        """Whether anything but this process and its workspace would be written to."""
        return bool(self.jsonl or self.email or self.webhook)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = NAME, site: bool = False) -> AlertSettings:
        """The settings in plain values; PlanRefused with all problems. ``site``: of a site's policy."""
        problems: list[str] = []
        found = _read(cls, values, "", problems)
        if not problems and site:
            problems += _for_others(found)
        if not problems and isinstance(found, AlertSettings):
            return found
        if len(problems) == 1:
            raise PlanRefused(f"{where}: {problems[0]}")
        raise PlanRefused("\n".join([f"{where}: {len(problems)} problems", *(f"  {one}" for one in problems)]))

    def sinks(self, folder: Path, *, service: bool = False) -> list[Sink]:
        """What is stated, ready to send. ``folder`` is where paths begin; ``service``: log instead of a terminal.

        PlanRefused where a password or certificate is not there: before a run begins, not at its first alert.
        """
        found: list[Sink] = []
        if self.terminal.on:
            found.append((Log if service else Terminal)(least=self.terminal.least))
        for file in self.jsonl:
            found.append(JsonLines(folder / file.path, audience=file.audience, least=file.least))
        for mail in self.email:
            _certificate(folder, mail.ca)
            password = _secret("password", mail.password_env, mail.password_file, folder)
            found.append(Email(mail, password=password, folder=folder))
        for hook in self.webhook:
            _certificate(folder, hook.ca)
            secret = _secret("secret", hook.secret_env, hook.secret_file, folder)
            found.append(Webhook(hook, secret=secret, folder=folder))
        return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The settings that count in a workspace, the file they come from (None: there is none), and if it is trusted."""

    settings: AlertSettings
    path: Path | None
    trusted: bool

    def sinks(self, *, service: bool = False) -> list[Sink]:
        """The sinks that may be used: those of a file that is not trusted yet stay shut, and that is said."""
        folder = Path() if self.path is None else self.path.parent
        if self.trusted or not self.settings.reaches_out:
            return self.settings.sinks(folder, service=service)
        log.warning(
            "%s names servers or files that were never tried, so alerts stay in this workspace; "
            "try and trust them with: quietsum alerts --test --workspace %s",
            self.path,
            shlex.quote(str(folder)),
        )
        return dataclasses.replace(self.settings, jsonl=(), email=(), webhook=()).sinks(folder, service=service)


def find(workspace: Path) -> Found:
    """The file that ``$QUIETSUM_ALERTS`` names, else ``alerts.toml`` in ``workspace``, else what is usual."""
    said = os.environ.get(VARIABLE, "").strip()
    path = Path(said) if said else workspace / NAME
    if not said and not os.path.lexists(path):
        return Found(settings=AlertSettings(), path=None, trusted=True)
    content = _content(path)
    return Found(
        settings=_parse(content, str(path)), path=path, trusted=bool(said) or _digest(content) in read_memory(TRUSTED)
    )


def trust(path: Path) -> None:
    """From now on the file at ``path``, as it is, may be used; remembered in the user's own state folder."""
    remember(TRUSTED, _digest(_content(path)))


# ------------------------------------------------------------------------------------------------- reading


def _content(path: Path) -> bytes:
    try:
        return read_file(path, LARGEST)
    except OSError as error:
        raise PlanRefused(f"{path} cannot be read ({error.strerror or error}); check it, or move it away") from None


def _parse(content: bytes, where: str) -> AlertSettings:
    try:
        values = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PlanRefused(f"{where} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise PlanRefused(f"{where} is not valid TOML: {' '.join(str(error).split())[:300]}") from None
    return AlertSettings.from_dict(values, where=where)


def _read(kind: type[Any], values: object, path: str, problems: list[str]) -> Any:
    """The value of dataclass ``kind`` that a table describes; None after adding what is wrong to ``problems``."""
    if not isinstance(values, Mapping):
        problems.append(f"{path.rstrip('.')} = {_toml_of(values)} is not a table, as in {{ key = value }}")
        return None
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints, told, given = typing.get_type_hints(kind), len(problems), {}
    for name, value in values.items():
        if name in fields:
            given[name] = _value(hints[name], value, f"{path}{name}", problems)
        else:
            problems.append(f"{path}{_toml_of(name)[1:-1]}: unknown key{_nearest(str(name), fields, path)}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{path}{name} is missing; {_small(field.metadata['meaning'])}")
    if len(problems) > told:
        return None
    try:
        return kind(**given)
    except InvalidParameter as error:
        problems.append(f"{path}{error}")
        return None


def _value(kind: Any, value: object, path: str, problems: list[str]) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read(kind, value, f"{path}.", problems)
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        if dataclasses.is_dataclass(inner[0]):  # [[email]], or [email] for a single one
            rows = value if isinstance(value, list) else [value]
            many = isinstance(value, list)
            return tuple(
                _read(typing.cast(type[Any], inner[0]), row, f"{path}[{n}]." if many else f"{path}.", problems)
                for n, row in enumerate(rows)
            )
        rows = [value] if not isinstance(value, list) else value
        if not all(isinstance(row, str) for row in rows):
            problems.append(f'{path} = {_toml_of(value)} is not a list of texts, as in ["first", "second"]')
            return ()
        return tuple(rows)
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        known = [one.value for one in kind]
        if value not in known:
            close = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.6)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            problems.append(f"{path} = {_toml_of(value)} is unknown; choose {' or '.join(known)}{meant}")
            return None
        return kind(str(value))
    nouns: dict[Any, tuple[Any, str]] = {
        bool: (bool, "true or false"),
        int: (int, "a whole number"),
        float: ((int, float), "a number"),
        str: (str, "a text in quotes"),
    }
    types_, noun = nouns.get(kind, (Mapping, "a table, as in { accuracy = 0.5 }"))
    if not isinstance(value, types_) or (isinstance(value, bool) and kind is not bool):
        problems.append(f"{path} = {_toml_of(value)} is not {noun}")
        return None
    return value


def _for_others(settings: AlertSettings) -> Iterator[str]:
    """Sinks of a site that would never get anything: what a site knows is its operator's alone."""
    for name in ("email", "webhook", "jsonl"):
        for number, sink in enumerate(getattr(settings, name)):
            if sink.audience is Audience.OTHERS:
                yield (
                    f'{name}[{number}].audience = "others" would get nothing: every alert of a site tells that it took '
                    'part; say audience = "operator" if the site\'s own operator alone reads it, or leave it out'
                )


def _nearest(name: str, fields: Mapping[str, Any], path: str) -> str:
    close = difflib.get_close_matches(name.replace("-", "_").lower(), fields, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {path}{close[0]}?"
    if name.lower() in ("password", "secret", "token", "key"):
        return "; secrets do not stand in this file: name a variable or file, as password_env or secret_file do"
    return f"; {path.rstrip('.') or 'it'} knows {', '.join(fields)}"


def _toml_of(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "".join(letter if letter.isprintable() else "?" for letter in repr(value))
    return text if len(text) <= 40 else f"{text[:37]}…"


def _small(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _secret(name: str, env: str, file: str, folder: Path) -> str:
    """A password or key; no message quotes it."""
    if env:
        value = os.environ.get(env, "")
        if not value:
            raise PlanRefused(f"the environment variable {env} is not set, and {name}_env names it; set it")
        return value
    if not file:
        return ""
    path = folder / file
    try:
        value = read_file(path, LONGEST_SECRET).decode().strip("\r\n")
    except (OSError, ValueError) as error:  # no text, or no name of a file
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "is no text"
        raise PlanRefused(f"{path}, which {name}_file names, cannot be read ({reason})") from None
    if not value or "\n" in value or "\0" in value:
        raise PlanRefused(f"{path}, which {name}_file names, does not hold one line")
    return value


def _certificate(folder: Path, name: str) -> None:
    if name and not (folder / name).is_file():
        raise PlanRefused(f"{folder / name}, which ca names, is not there")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ------------------------------------------------------------------------------------------------- reference


def alert_keys() -> dict[str, str]:
    """Every key by its full path, with its meaning."""
    return {path: meaning for path, _, meaning in _rows(AlertSettings, "")}


def reference(before: str = "") -> str:
    """The tables of the reference page, in Markdown; ``before`` is "alerts." in a site's policy."""
    parts = []
    for field in dataclasses.fields(AlertSettings):
        inner = _inner(typing.get_type_hints(AlertSettings)[field.name])
        many = typing.get_origin(typing.get_type_hints(AlertSettings)[field.name]) is tuple
        title = f"[[{before}{field.name}]]" if many else f"[{before}{field.name}]"
        rows = "\n".join(
            f"| `{path}` | {default} | {meaning} |" for path, default, meaning in _rows(inner, f"{before}{field.name}.")
        )
        parts.append(
            f"## {title}\n\n{field.metadata['meaning']}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def _rows(kind: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = _inner(hints[field.name])
        if inner is not None:
            yield from _rows(inner, f"{prefix}{field.name}.")
            continue
        default = "must be stated"
        if field.default is not dataclasses.MISSING:
            default = f"`{json.dumps(field.default)}`"
        elif field.default_factory is not dataclasses.MISSING:
            default = "`{}`"
        yield f"{prefix}{field.name}", default, str(field.metadata["meaning"]).replace("|", "\\|")


def _inner(kind: Any) -> Any:
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and dataclasses.is_dataclass(kind):
        return kind
    parts = typing.get_args(kind)
    return parts[0] if parts and dataclasses.is_dataclass(parts[0]) else None
