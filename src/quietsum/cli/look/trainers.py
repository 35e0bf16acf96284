"""``quietsum check --trainer``: a user's own step, run on made-up rows against what a claim says of it.

The function is one that the user has typed, and it is the user's own code: it is imported from where quietsum is
started. A claim file names no code, and none that it named would be imported.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from quietsum.cli.look.claims import CONTRADICTED, show
from quietsum.cli.shared.output import print_json
from quietsum.cli.train.selfcheck import finite_values, show_report
from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.audit import ClaimFile
    from quietsum.selfcheck import CheckReport

__all__ = ["check_trainer"]

_FORM = "write module:function, with the module where quietsum is started"


def check_trainer(name: str, claim: str | None, as_json: bool, features: int) -> int:
    """Run the step behind ``name`` under the self-check, and check the claim that it is held against."""
    from quietsum.audit import check_claim, read_claim

    file = None if claim is None else read_claim(claim)
    found = None if file is None else check_claim(file)
    report = _run(name, _named(name), file, features)
    code = 0 if report.passed and not (found and found.contradicted) else CONTRADICTED
    if as_json:
        values = {} if found is None else found.to_dict()
        print_json({"exit_code": code, **values, "trainer": finite_values(report.to_dict())})
        return code
    if found is not None:
        show(found)
        print()
    show_report(report)
    return code


def _run(name: str, trainer: Any, file: ClaimFile | None, features: int) -> CheckReport:
    from quietsum.audit import step_terms
    from quietsum.selfcheck import FunctionStep, run_selfcheck

    if not _parameters(name, trainer):
        step = trainer()
        if lacking := [
            each for each in ("examples", "deterministic", "noise", "release", "run") if not hasattr(step, each)
        ]:
            raise InvalidParameter(
                "trainer",
                name,
                f"returned a {type(step).__name__} without {', '.join(lacking)}",
                "return what quietsum.selfcheck.StepUnderTest lists, or let the function be the step itself",
            )
        return run_selfcheck(step)
    if file is None:
        raise InvalidParameter("CLAIM", None, "is missing", "name the settings that the step is held against")
    terms = step_terms(file)
    made = FunctionStep(
        trainer,
        noise_multiplier=terms.noise_multiplier,
        max_norm=terms.max_norm,
        rate=terms.rate,
        population=terms.population,
        features=features,
        draw=getattr(trainer, "draw", None),
        name=name,
    )
    return run_selfcheck(made, only=made.tests)


def _parameters(name: str, trainer: Any) -> bool:
    """Whether the function takes rows; one without parameters makes a step instead."""
    if not callable(trainer):
        raise InvalidParameter("trainer", name, "cannot be called", _FORM)
    try:
        found = inspect.signature(trainer).parameters
    except (TypeError, ValueError):
        raise InvalidParameter("trainer", name, "shows no parameters", "write it in Python") from None
    needed = [
        one
        for one in found.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed and not {"noise_multiplier", "max_grad_norm"} <= set(found):
        raise InvalidParameter(
            "trainer",
            name,
            "does not take noise_multiplier and max_grad_norm",
            "write def step(features, labels, *, noise_multiplier, max_grad_norm), returning the noisy sum",
        )
    return bool(needed)


def _named(name: str) -> Any:
    """The object behind ``module:name``. The working folder is searched last of all."""
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InvalidParameter("trainer", name, "names no function", _FORM)
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidParameter("trainer", name, f"cannot be imported ({error})", _FORM) from None
    finally:
        if added:
            sys.path.remove(here)
    if not hasattr(holder, attribute):
        raise InvalidParameter("trainer", name, f"cannot be found: {module} has no {attribute}", _FORM)
    return getattr(holder, attribute)
