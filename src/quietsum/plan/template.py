"""A first ``run.toml``, with a comment on every choice, for ``quietsum new``.

Settings that suit a task stand in one place each: :data:`HEART_DEFAULTS` for the task that travels with the package,
:data:`OTHER_DEFAULTS` for your own.
"""

from __future__ import annotations

import dataclasses
import json
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.plan.presets import PRESETS

__all__ = ["HEART_DEFAULTS", "OTHER_DEFAULTS", "Defaults", "template"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a fresh plan says about training and privacy. A sample rate fits parties of all sizes."""

    rounds: int
    sample_rate: float
    learning_rate: float
    max_grad_norm: float
    epsilon: float
    delta: float
    local_steps: int | None = None
    local_epochs: int | None = None


HEART_DEFAULTS = Defaults(
    rounds=20, sample_rate=0.25, local_steps=1, learning_rate=0.4, max_grad_norm=0.5, epsilon=1.0, delta=1e-5
)
OTHER_DEFAULTS = Defaults(
    rounds=20, sample_rate=0.1, local_epochs=1, learning_rate=0.5, max_grad_norm=1.0, epsilon=1.0, delta=1e-5
)


def template(*, task: str = "heart", preset: str | None = None) -> str:
    """The text of a commented ``run.toml``; it states a preset, or ε and δ.

    >>> from quietsum.plan import load_plan
    >>> load_plan(template(preset="performance")).privacy.preset
    'performance'
    """
    if preset is not None and preset not in PRESETS:
        raise InvalidParameter("preset", preset, "is unknown", f"choose one of {', '.join(PRESETS)}")
    chosen = HEART_DEFAULTS if task == "heart" else OTHER_DEFAULTS
    length = (
        _line(f"local_steps = {chosen.local_steps}", "steps in a round; or local_epochs")
        if chosen.local_steps is not None
        else _line(f"local_epochs = {chosen.local_epochs}", "passes over the records; or local_steps")
    )
    record = (
        f"record = {{ epsilon = {chosen.epsilon}, delta = {chosen.delta:g}, max_grad_norm = {chosen.max_grad_norm} }}"
    )
    named = "".join(f"#   {name:<14} ε {one.epsilon:g} per record\n" for name, one in PRESETS.items())
    if preset is None:
        promise = (
            "# The noise is calibrated so that the whole run stays within ε and δ.\n"
            f"{record}\n"
            f"# Or a promise with a name, instead of epsilon and delta:\n{named}"
            '# preset = "privacy_medium"'
        )
    else:
        promise = (
            f"# A promise with a name; the noise is calibrated to keep it:\n{named}"
            f'preset = "{preset}"\n'
            + _line(f"record = {{ max_grad_norm = {chosen.max_grad_norm} }}", "the clip of one record's gradient")
            + f"\n# Or state it yourself, instead of the preset:\n# {record}"
        )
    return f"""\
# A run of quietsum: who takes part, how they train, what privacy is promised.
# What it costs, before anything is spent:  quietsum plan <this file>

[task]
name = {json.dumps(task, ensure_ascii=False)}

[federation]
rounds = {chosen.rounds}
sampling = {{ kind = "everyone" }}  # or {{ kind = "poisson", rate = 0.1 }}
# parties = ["first", "second"]   # all parties of the task, if left out
minimum_parties = 1               # a round with fewer replies fails
spare_attempts = 0                # rounds that may be lost; paid in advance

[training]
{_line(f"sample_rate = {chosen.sample_rate}", "a record's chance per batch; or batch_size")}
{length}
optimizer = {{ kind = "sgd", learning_rate = {chosen.learning_rate}, momentum = 0.0 }}

[privacy]
style = "sample"                  # protects each record; "none": nobody
{promise}
accounting = "exact"              # or "rdp", "moments": looser, more noise
neighbours = "add-or-remove-one"  # or "zero-out", "replace-one"

[aggregation]
rule = "mean"
weights = "size"                  # by declared size, or "equal"
"""


def _line(setting: str, comment: str) -> str:
    return f"{setting:<33} # {comment}"
