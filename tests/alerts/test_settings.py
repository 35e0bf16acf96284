"""``alerts.toml``: unknown keys are errors, secrets stand elsewhere, and a stranger's file calls nobody."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

from quietsum.alerts import AlertSettings, Audience, settings as module
from quietsum.alerts.servers import Email, Webhook
from quietsum.alerts.settings import alert_keys, find, reference, trust
from quietsum.alerts.sinks import JsonLines, Log, Terminal
from quietsum.errors import PlanRefused

WHOLE = """
[rules]
budget = 0.7
chance = { accuracy = 0.54 }

[limits]
per_kind = 3

[terminal]
least = "notice"

[[jsonl]]
path = "out.jsonl"

[[email]]
host = "mail.example.org"
user = "quietsum"
password_file = "smtp.password"
sender = "quietsum@example.org"
to = ["ann@example.org"]
audience = "operator"

[[webhook]]
url = "https://chat.example.org/hook/abc"
secret_env = "HOOK_SECRET"
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setenv("HOOK_SECRET", "s")


def write(folder: Path, text: str = WHOLE) -> Path:
    (folder / "smtp.password").write_text("geheim\n")
    (folder / "alerts.toml").write_text(text)
    return folder / "alerts.toml"


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    found = find(write(tmp_path).parent)
    assert found.settings.rules.budget == 0.7 and found.settings.limits.per_kind == 3
    assert [one.audience for one in found.settings.email] == [Audience.OPERATOR]
    assert [one.audience for one in found.settings.webhook] == [Audience.OTHERS]  # unless the file says operator
    sinks = found.settings.sinks(tmp_path)
    assert [type(sink) for sink in sinks] == [Terminal, JsonLines, Email, Webhook]
    assert isinstance(found.settings.sinks(tmp_path, service=True)[0], Log)
    assert "geheim" not in repr(sinks) and "abc" not in " ".join(sink.name for sink in sinks)


def test_without_a_file_the_terminal_is_all_there_is(tmp_path: Path) -> None:
    found = find(tmp_path)
    assert found.path is None and [type(sink) for sink in found.sinks()] == [Terminal]


def test_e_mail_and_webhooks_are_for_others_unless_the_file_says_operator() -> None:
    text = {"host": "h.example", "sender": "a@b", "to": "c@d"}
    found = AlertSettings.from_dict({"email": text, "webhook": {"url": "https://h.example/"}, "jsonl": {"path": "x"}})
    assert found.email[0].audience is Audience.OTHERS and found.webhook[0].audience is Audience.OTHERS
    assert found.jsonl[0].audience is Audience.OPERATOR and found.email[0].to == ("c@d",)


@pytest.mark.parametrize(
    ("values", "told"),
    [({"rulez": {}}, "rulez: unknown key; did you mean rules?"),
     ({"rules": {"budgett": 0.5}}, "rules.budgett: unknown key; did you mean rules.budget?"),
     ({"email": [{"sendr": "a@b"}]}, "did you mean email[0].sender?"),
     ({"webhook": {"url": "https://a.example/", "secret": "s"}}, "did you mean webhook.secret_env?"),
     ({"webhook": {"url": "https://a.example/", "token": "s"}}, "secrets do not stand in this file"),
     ({"terminal": {"on": 1}}, "terminal.on = 1 is not true or false"),
     ({"rules": {"window": 1.5}}, "rules.window = 1.5 is not a whole number"),
     ({"rules": {"window": True}}, "rules.window = true is not a whole number"),
     ({"rules": {"chance": 3}}, "rules.chance = 3 is not a table"),
     ({"rules": {"chance": {"auc": "x"}}}, "rules.chance.auc"),
     ({"rules": 3}, "rules = 3 is not a table"), ({"jsonl": ["x"]}, "jsonl[0] = 'x' is not a table"),
     ({"jsonl": {"path": ""}}, "names no file"), ({"jsonl": {}}, "jsonl.path is missing"),
     ({"webhook": {"url": "https://a.example/", "audience": "Operator"}}, "did you mean 'operator'?"),
     ({"email": {"host": "h", "sender": "a@b", "to": 3}}, "email.to = 3 is not a list of texts"),
     ({"rules": {"budget": 2}}, "rules.budget = 2 must lie in")],
)  # fmt: skip
def test_what_a_file_may_not_say_is_refused_with_its_path(values: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        AlertSettings.from_dict(values)
    assert told in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(PlanRefused, match="3 problems") as caught:
        AlertSettings.from_dict({"rules": {"budget": 0}, "limits": {"room": 0}, "webhook": {}})
    assert str(caught.value).count("\n") == 3


@pytest.mark.parametrize("content", [b"\xff", b"a = ", b"[" * 100_000, b"x" * 2_000_000])
def test_a_file_that_cannot_be_read_is_refused_without_a_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "alerts.toml").write_bytes(content)
    with pytest.raises(PlanRefused, match=r"alerts\.toml"):
        find(tmp_path)


def test_a_site_has_nothing_for_others_and_says_so() -> None:
    hook = {"url": "https://h.example/", "audience": "operator"}
    assert AlertSettings.from_dict({"webhook": hook}, site=True).webhook
    with pytest.raises(PlanRefused, match="would get nothing: every alert of a site tells that it took part"):
        AlertSettings.from_dict({"webhook": {"url": "https://h.example/"}}, site=True)


# --------------------------------------------------------------------------------------------- secrets and trust


@pytest.mark.parametrize(
    ("change", "told"),
    [("unset", "HOOK_SECRET is not set"), ("no file", "cannot be read"), ("two lines", "does not hold one line"),
     ("empty", "does not hold one line"), ("huge", "cannot be read")],
)  # fmt: skip
def test_a_secret_that_is_not_there_is_told_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, told: str
) -> None:
    write(tmp_path)
    match change:
        case "unset":
            monkeypatch.delenv("HOOK_SECRET")
        case "no file":
            (tmp_path / "smtp.password").unlink()
        case _:
            content = {"two lines": "geheim\nzwei", "empty": "\n", "huge": "geheim" * 2000}[change]
            (tmp_path / "smtp.password").write_text(content)
    with pytest.raises(PlanRefused, match=told) as caught:
        find(tmp_path).settings.sinks(tmp_path)
    assert "geheim" not in str(caught.value)


def test_a_file_that_nobody_vouched_for_opens_no_sink_and_reads_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace may come from a stranger, and his file could send any variable or file of this user to him."""
    path = write(tmp_path)
    monkeypatch.delenv("HOOK_SECRET")  # it would be an error to look for it
    assert [type(sink) for sink in find(tmp_path).sinks()] == [Terminal]
    assert f"quietsum alerts --test --workspace {tmp_path}" in caplog.text
    trust(path)
    monkeypatch.setenv("HOOK_SECRET", "s")
    assert len(find(tmp_path).sinks()) == 4
    path.write_text(WHOLE.replace("chat.example.org", "evil.example.org"))  # another file, even in one word
    assert len(find(tmp_path).sinks()) == 1


def test_a_file_that_the_user_names_himself_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, str(write(tmp_path)))
    assert len(find(tmp_path / "elsewhere").sinks()) == 4
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "gone.toml"))
    with pytest.raises(PlanRefused, match="cannot be read"):
        find(tmp_path)


def test_rules_alone_need_nobodys_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "[rules]\nbudget = 0.5\n")
    assert len(find(tmp_path).sinks()) == 1 and not caplog.records


def test_no_plan_has_a_place_for_an_address() -> None:
    """A plan is data from elsewhere: no key of run.toml is a key of a sink."""
    from quietsum.plan import Plan, keys_of

    sinks = {path.rpartition(".")[2] for path in alert_keys() if path.startswith(("email.", "webhook.", "jsonl."))}
    assert {"url", "host", "password_env"} <= sinks
    assert not any(path.startswith("alert") for path in keys_of(Plan))
    assert not {path.rpartition(".")[2] for path in keys_of(Plan)} & (sinks - {"security", "path", "timeout"})


def test_every_key_has_a_meaning_and_stands_in_the_tables() -> None:
    text = reference()
    for path, meaning in alert_keys().items():
        assert meaning.endswith(".") and f"| `{path}` |" in text
    for field in dataclasses.fields(AlertSettings):
        assert field.name in typing.get_type_hints(AlertSettings) and f"{field.name}]" in text


def test_a_name_of_a_file_that_no_file_can_have_is_refused_in_a_sentence(tmp_path: Path) -> None:
    from quietsum.alerts.settings import _secret

    with pytest.raises(PlanRefused, match="cannot be read"):
        _secret("password", "", "a\0b", tmp_path)
