"""A plan, a policy and a workspace are data: what they name is known to be a task before any of it runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.cli.sites.check import _make
from quietsum.errors import InvalidParameter
from quietsum.party.policy import AllowedTask
from quietsum.plan import Plan, load_plan
from quietsum.runs.sealed import add_check, take_check
from quietsum.tasks import registry as tasks
from quietsum.tasks.classes import class_named
from quietsum.tasks.registry import trainable_task
from tiny import tiny_plan

CANARY = "canary"
TOUCH = f"__import__('pathlib').Path({CANARY!r}).touch()"
SHAPE = """
    name = title = "evil"
    dimension = 1
    def parties(self): ...
    def initial(self): ...
    def rows(self, party): ...
    def gradients(self, params, features, labels): ...
    def evaluate(self, params): ...
"""
FILES = {
    # Importing it is enough.
    "on_import.py": f"{TOUCH}\nclass Evil:\n    name = 'evil'\n",
    # The packages around it are imported first.
    "around/__init__.py": f"{TOUCH}\n",
    "around/inner.py": "class Evil:\n    name = 'evil'\n",
    # Calling it is enough.
    "on_call.py": f"class Evil:\n    def __init__(self, **options): {TOUCH}\n    def evaluate(self, params): ...\n",
    # It has everything but one method.
    "nearly.py": f"class Evil:{SHAPE.replace('def rows', 'def raws')}\n    def __init__(self): {TOUCH}\n",
    # Nothing of it is a class.
    "callables.py": (
        f"import functools\ndef Function(**options): {TOUCH}\n"
        f"class Task:{SHAPE}\n    def __call__(self, **options): {TOUCH}\nInstance = Task()\n"
        "Partial = functools.partial(Function)\n"
        "def __getattr__(name):\n    if name == 'Evil': return Function\n    raise AttributeError(name)\n"
    ),
    # A class whose class does the work.
    "meta.py": (
        f"class Meta(type):\n    def __call__(cls, **options): {TOUCH}\n"
        f"    def __getattr__(cls, name): {TOUCH}\n"
        f"class Evil(metaclass=Meta):{SHAPE}\n"
        f"class Lacking(metaclass=Meta):\n    name = 'evil'\n"
    ),
    # Somebody else's class under another roof.
    "borrowed.py": "from subprocess import Popen\nfrom subprocess import Popen as Task\n",
    # A base that cannot be found in any source.
    "opaque.py": f"{TOUCH}\nclass Evil(vars()['__builtins__']['object']):\n    name = 'evil'\n",
    # A loop of names and of files.
    "loop.py": f"{TOUCH}\nfrom loop import Evil\nEvil = Other\nOther = Evil\n",
    "compiled.pyc": "no source",
}
PAYLOADS: dict[str, dict[str, Any]] = {
    "os:system": {"command": f"touch {CANARY}"},
    "posix:system": {"command": f"touch {CANARY}"},
    "subprocess:Popen": {"args": ["touch", CANARY]},
    "subprocess:check_output": {"args": ["touch", CANARY]},
    "builtins:exec": {},
    "builtins:open": {"file": CANARY, "mode": "w"},
    "pathlib:Path": {},
    "os:path.join": {},
    "importlib:import_module": {"name": "on_import"},
    "runpy:run_module": {"mod_name": "on_import"},
    "timeit:timeit": {"stmt": TOUCH},
    "antigravity:x": {},
    "this:x": {},
    "idlelib.idle:x": {},
    "test.support:x": {},
    "__main__:Evil": {},
    "quietsum.cli:main": {},
    "quietsum.cli.app:app": {},
    "quietsum.__main__:x": {},
    "quietsum.ledger:Ledger": {},
    "quietsum.tasks:task_named": {"name": "on_import:Evil"},
    "quietsum.tasks.gallery.heart:HeartTask.from_options": {},
    "numpy.f2py:main": {},
    "numpy.f2py.f2py2e:run_main": {"comline_list": [CANARY]},
    "numpy:save": {"file": CANARY, "arr": 1},
    "typer:launch": {"url": CANARY},
    "on_import:Evil": {},
    "on_import:Nothing": {},
    "around.inner:Evil": {},
    "around:inner.Evil": {},
    "on_call:Evil": {},
    "nearly:Evil": {},
    "callables:Function": {},
    "callables:Instance": {},
    "callables:Partial": {},
    "callables:Evil": {},
    "meta:Evil": {},
    "meta:Lacking": {},
    "borrowed:Popen": {"args": ["touch", CANARY]},
    "borrowed:Task": {"args": ["touch", CANARY]},
    "opaque:Evil": {},
    "loop:Evil": {},
    "compiled:Evil": {},
    "on_import:Evil.__init__": {},
    "on_import:": {},
    ":Evil": {},
    "../on_import:Evil": {},
    " on_import:Evil": {},
    "on_import;x:Evil": {},
}
NOT_IMPORTED = ("antigravity", "this", "idlelib.idle", "numpy.f2py.f2py2e", "on_import", "around", "opaque", "loop")


RECORD = {"epsilon": 2.0, "delta": 1e-3, "max_grad_norm": 1.0, "lifetime": {"epsilon": 40.0, "delta": 1e-3}}
PLAN = tiny_plan(privacy={"record": RECORD})


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one run that finished, and one that was broken off."""
    place = tmp_path_factory.mktemp("kept")
    plan = place / "run.toml"
    plan.write_text(PLAN.to_toml())
    assert call("run", plan, "--workspace", place / "ws", "--name", "done").exit_code == 0
    assert call("run", plan, "--workspace", place / "ws", "--name", "half").exit_code == 0
    half = place / "ws" / "runs" / "half"
    for name in ("model.safetensors", "report.json", "report.html", "checkpoints/round-000003.safetensors"):
        (half / name).unlink()
    return place / "ws"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ours = {Path(name).parts[0].removesuffix(".py") for name in FILES}
    for name in [*sys.modules]:
        if name.split(".")[0] in ours:
            monkeypatch.delitem(sys.modules, name)
    return tmp_path


def hostile_plan(name: str, options: dict[str, Any]) -> Plan:
    return Plan.from_dict({**PLAN.to_dict(), "task": {"name": name, "options": options}})


def hostile_workspace(kept: Path, place: Path, name: str, options: dict[str, Any]) -> Path:
    """A stranger's: the frozen plans of its runs name something else, and everything fits together."""
    shutil.copytree(kept, place)
    plan = hostile_plan(name, options)
    for run in ("done", "half"):
        folder = place / "runs" / run
        (folder / "plan.toml").write_text(plan.to_toml())
        marker = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(add_check({**take_check(marker), "plan": plan.digest})))
    training = place / "training" / "trained"
    training.mkdir(parents=True)
    chosen = {"task": name, "engine": "auto", "noise": "fast", "fix": False, "learning_rate": None, "config": {}}
    (training / "options.json").write_text(json.dumps(chosen))
    return place


LOOKING = (
    ("runs",), ("runs", "--json"), ("show", "done"), ("show", "half"), ("show", "done", "--json"),
    ("show", "done", "--output", "curve.svg"), ("compare", "done", "half"), ("ledger", "show"), ("ledger", "verify"),
    ("ledger", "export", "export.jsonl"),
)  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_a_file_names_does_not_run_unless_it_is_a_task(folder: Path, name: str) -> None:
    options, loaded = PAYLOADS[name], set(sys.modules)
    plan = hostile_plan(name, options)
    for make in (
        lambda: tasks.task_of(plan),
        lambda: tasks.task_named(name, options),
        lambda: trainable_task(name, options),
        lambda: _make(AllowedTask(name=name, here=options)),  # of a policy
    ):
        with pytest.raises(InvalidParameter):
            make()
        assert not Path(CANARY).exists()
    assert not {*NOT_IMPORTED} & (set(sys.modules) - loaded)


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "on_import:Evil", "on_call:Evil", "borrowed:Task"])
def test_no_command_runs_what_a_plan_or_a_workspace_names(kept: Path, folder: Path, name: str) -> None:
    options = PAYLOADS[name]
    place = hostile_workspace(kept, folder / "ws", name, options)
    Path("run.toml").write_text(hostile_plan(name, options).to_toml())
    for words in (
        ("plan", "run.toml"), ("run", "run.toml"), ("run", "run.toml", "--workspace", place),
        ("run", "--resume", "half", "--workspace", place), ("run", "--resume", "done", "--workspace", place),
        ("train", "--resume", "trained", "--workspace", place), ("train", "--task", name, "--epsilon", "3"),
        ("selfcheck", "--task", name), ("tradeoff", "--task", name, "--epsilons", "1", "--seeds", "2"),
    ):  # fmt: skip
        done = call(*words)
        assert done.exit_code == 2, (words, done.output)
        assert not Path(CANARY).exists(), words
    for look in LOOKING[:3]:
        done = call(*look, "--workspace", place)
        assert done.exit_code == 0, (look, done.output)
        assert not Path(CANARY).exists(), look


def test_looking_makes_no_task_even_of_a_class_that_is_one(
    kept: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shaped.py").write_text(f"{TOUCH}\nclass Evil:{SHAPE}\n    def __init__(self, **options): {TOUCH}\n")
    place = hostile_workspace(kept, folder / "ws", "shaped:Evil", {})

    def made(*given: object, **more: object) -> Any:
        raise AssertionError("a task was made")

    with monkeypatch.context() as patch:
        for each in ("task_of", "task_named", "make_own_task", "class_named", "instantiate"):
            patch.setattr(tasks, each, made)
        for words in LOOKING:
            assert call(*words, "--workspace", place).exit_code == 0, words
    assert not Path(CANARY).exists()
    class_named("shaped:Evil")()  # the control: a task of the user's own does run, once it is asked for
    assert Path(CANARY).exists()


def test_a_stranger_s_run_is_shown_as_before_without_its_task(kept: Path, folder: Path) -> None:
    honest = json.loads(call("show", "done", "--json", "--workspace", kept).stdout)
    place = hostile_workspace(kept, folder / "ws", "os:system", {"command": f"touch {CANARY}"})
    shown = json.loads(call("show", "done", "--json", "--workspace", place).stdout)
    for key in ("guarantees", "metrics", "round", "outcome", "summary", "parties", "lifetime"):
        assert shown[key] == honest[key] and (honest[key] or key == "lifetime"), key
    half = json.loads(call("show", "half", "--json", "--workspace", place).stdout)
    assert half["round"] == 2 and half["metrics"][0]["name"] == "distance"


@pytest.mark.parametrize(
    "text",
    [
        "class Mine(Base): ...",
        "class Mine(base.Numpy): ...",
        "Mine = Base",
        "import base as b\nclass Mine(b.Numpy):\n    pass",
        "if True:\n    class Mine(Base): ...",
        "from base import *\nclass Mine(Numpy): ...",
        "class Mine(Base):\n    title: str\n    def __init__(self):\n        self.title = 'm'",
        "import dataclasses\n@dataclasses.dataclass\nclass Mine(Base):\n    scale: float = 1.0",
        "from base import Numpy as Mine",
    ],
)
def test_a_task_is_found_in_its_source_however_it_is_written(folder: Path, text: str) -> None:
    (folder / "base.py").write_text(f"class Numpy:{SHAPE}\n")
    (folder / "mine.py").write_text(f"import base\nfrom base import Numpy as Base\n{text}\n")
    for name in ("base", "mine"):
        sys.modules.pop(name, None)
    try:
        assert class_named("mine:Mine")().title in ("evil", "m")
    finally:
        for name in ("base", "mine"):
            sys.modules.pop(name, None)


def test_a_task_in_a_package_is_found_through_its_relative_imports(folder: Path) -> None:
    (folder / "hospital_wards" / "deep").mkdir(parents=True)
    (folder / "hospital_wards" / "__init__.py").write_text("from .deep.task import Ward\n")
    (folder / "hospital_wards" / "base.py").write_text(f"class Base:{SHAPE}\n")
    (folder / "hospital_wards" / "deep" / "__init__.py").write_text("")
    (folder / "hospital_wards" / "deep" / "task.py").write_text("from ..base import Base\nclass Ward(Base): ...\n")
    try:
        assert class_named("hospital_wards:Ward") is class_named("hospital_wards.deep.task:Ward")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "hospital_wards"]:
            del sys.modules[name]


def test_a_module_that_leaves_the_process_while_it_is_imported_is_a_mistake_of_its_own(folder: Path) -> None:
    (folder / "leaving.py").write_text(f"class Mine:{SHAPE}\nraise SystemExit(0)\n")
    with pytest.raises(InvalidParameter, match="cannot be imported"):
        class_named("leaving:Mine")


def test_a_frozen_plan_is_read_back_as_it_was_written(kept: Path) -> None:
    assert load_plan(kept / "runs" / "done" / "plan.toml").task.name == "tiny:TinyTask"
