"""A first ``run.toml``, with a comment on every choice, for ``quietsum new``.

Settings that suit a task stand in one line each of :data:`DEFAULTS` (records) and :data:`CLIENTS` (clients as a
whole); :data:`OTHER_DEFAULTS` and :data:`OTHER_CLIENTS` are for your own. Those of federations that
``benchmarks/federated_tasks.py`` runs were chosen on validation rows by its ``--choose``; the others are guesses near
the task's own settings for one site. No data is looked at, so a plan can be written where there is none.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.plan.promises import PRESETS, Style

__all__ = [
    "CLIENTS",
    "DEFAULTS",
    "HEART_DEFAULTS",
    "OTHER_CLIENTS",
    "OTHER_DEFAULTS",
    "Clients",
    "Defaults",
    "template",
]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a fresh plan says about sites, training and records. A sample rate fits parties of all sizes.

    ``parties`` is how many clients are made of ``split`` (None: the task's own sites as they are). ``momentum`` is the
    server's; 0 is FedAvg, and Adam where ``adam`` is its learning rate. ``person`` is what the task calls its
    people, and how many records of each are used; with ``promises_person`` the plan says what a whole one pays, and
    not only in a comment.
    """

    rounds: int
    sample_rate: float
    learning_rate: float
    max_grad_norm: float
    epsilon: float = 1.0
    delta: float = 1e-5
    local_steps: int | None = 1
    local_epochs: int | None = None
    split: str = "natural"
    parties: int | None = None
    momentum: float = 0.0
    person: tuple[str, int] | None = None
    promises_person: bool = False
    adam: float | None = None
    """The server's learning rate for Adam, in place of ``momentum``."""
    pace: float = 1.0
    """What Adam's rate is multiplied by: more than 1 where rows are declared to be short."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Clients:
    """What differs when clients are protected as a whole: many of them, longer rounds, a clip for updates.

    ``cohort`` is the chance of a client to be asked in a round; 1 asks everyone.
    """

    rounds: int
    learning_rate: float
    max_norm: float
    delta: float
    parties: int | None = None
    cohort: float = 1.0
    sample_rate: float = 1.0
    local_steps: int = 5
    momentum: float = 0.9
    epsilon: float = 8.0


def _deal_out(parties: int, **settings: float) -> Defaults:
    """Clients dealt out alike, for data that does not say where it comes from."""
    return Defaults(split="iid", parties=parties, **settings)  # type: ignore[arg-type]  # names are Defaults' own


DEFAULTS: Mapping[str, Defaults] = MappingProxyType({
    "heart": Defaults(rounds=20, sample_rate=0.25, learning_rate=0.4, max_grad_norm=0.5),
    "pose": Defaults(rounds=40, sample_rate=1.0, learning_rate=10.0, max_grad_norm=0.3, epsilon=8.0, delta=1e-3,
                     momentum=0.9, person=("subject", 4)),
    "nuclei": Defaults(rounds=30, sample_rate=1.0, learning_rate=0.6, max_grad_norm=0.5, delta=1e-4, momentum=0.9),
    "cards": Defaults(rounds=40, sample_rate=1.0, learning_rate=8.0, max_grad_norm=0.5, delta=1e-6, parties=500,
                      person=("card", 4)),
    "chest-xray": _deal_out(4, rounds=60, sample_rate=0.25, learning_rate=8.0, max_grad_norm=0.1),
    "fraud": _deal_out(5, rounds=100, sample_rate=1.0, learning_rate=50.0, max_grad_norm=1.2, delta=4e-7),
    "digits": _deal_out(4, rounds=40, sample_rate=0.25, learning_rate=4.0, max_grad_norm=0.1),
    "mnist": _deal_out(4, rounds=40, sample_rate=0.25, learning_rate=16.0, max_grad_norm=0.1, delta=1e-6),
    "fashion-mnist": _deal_out(4, rounds=40, sample_rate=0.25, learning_rate=32.0, max_grad_norm=0.1, delta=1e-6),
    "text": Defaults(rounds=60, sample_rate=0.2, learning_rate=1.0, max_grad_norm=1.0, parties=20, adam=0.05),
})  # fmt: skip
HEART_DEFAULTS = DEFAULTS["heart"]
OTHER_ROUNDS = 60
OTHER_DEFAULTS = Defaults(
    rounds=OTHER_ROUNDS,
    sample_rate=0.2,
    learning_rate=1.0,
    max_grad_norm=1.0,
    delta=1e-6,
    adam=round(0.4 / OTHER_ROUNDS**0.5, 2),
)
"""Of a task that has no row of its own: one step a round, whose mean the server scales by coordinate.

The rule is that of :mod:`quietsum.learning.defaults` for one site, where it is measured: Adam divides by
the noise where noise is what there is, so its rate depends on the number of steps alone, and neither clip nor
features' scale nor σ have to be known. Half of that site's rate, since the rate here keeps its size to
the end. A running mean of the models stands for the rate's line to 0.
"""

CLIENTS: Mapping[str, Clients] = MappingProxyType({
    "heart": Clients(rounds=20, learning_rate=0.4, max_norm=0.5, delta=0.02, local_steps=1, momentum=0.0),
    "pose": Clients(rounds=15, learning_rate=1.0, max_norm=0.1, delta=0.01, local_steps=1),
    "nuclei": Clients(rounds=15, learning_rate=0.6, max_norm=0.1, delta=0.01, local_steps=1),
    "cards": Clients(rounds=40, learning_rate=16.0, max_norm=1.0, delta=2e-5, parties=2000, cohort=0.25),
    "chest-xray": Clients(rounds=40, learning_rate=0.01, max_norm=0.3, delta=1e-4, parties=500),
    "fraud": Clients(rounds=40, learning_rate=20.0, max_norm=1.0, delta=2e-5, parties=2000, cohort=0.25),
    "digits": Clients(rounds=80, learning_rate=0.3, max_norm=0.3, delta=1e-4, parties=600),
    "mnist": Clients(rounds=40, learning_rate=0.3, max_norm=0.3, delta=2e-5, parties=2000, cohort=0.25),
    "fashion-mnist": Clients(rounds=40, learning_rate=0.3, max_norm=0.3, delta=2e-5, parties=2000, cohort=0.25),
    "text": Clients(rounds=40, learning_rate=1.0, max_norm=0.3, delta=1e-4, parties=150, local_steps=2),
})  # fmt: skip
OTHER_CLIENTS = Clients(rounds=20, learning_rate=0.5, max_norm=0.5, delta=1e-4, momentum=0.0)


def template(
    *,
    task: str = "heart",
    preset: str | None = None,
    style: str = "sample",
    secure: bool = False,
    options: str = "",
    settings: Defaults | None = None,
) -> str:
    """The text of a commented ``run.toml``; to records it promises a preset, or ε and δ.

    With ``secure`` the server sees masked sums, and the parties add the noise in shares. ``options`` is the text of
    ``[task.options]``, ``settings`` those of a task that is not known by its name.

    >>> from quietsum.plan import load_plan
    >>> load_plan(template(preset="performance")).privacy.preset
    'performance'
    >>> load_plan(template(task="digits", style="user")).federation.parties
    600
    >>> load_plan(template(secure=True)).privacy.record.noise_at
    'distributed'
    """
    if preset is not None and preset not in PRESETS:
        raise InvalidParameter("preset", preset, "is unknown", f"choose one of {', '.join(PRESETS)}")
    if style not in ("sample", "user", "hybrid"):
        raise InvalidParameter("style", style, "is unknown", "choose sample, user or hybrid")
    if style == "user" and preset is not None:
        remedy = "leave one of them out, or say style = hybrid to protect both"
        raise InvalidParameter("preset", preset, "promises something to records, which style user does not", remedy)
    kind = Style(style)
    chosen = settings or DEFAULTS.get(task, OTHER_DEFAULTS)
    clients = CLIENTS.get(task, OTHER_CLIENTS) if kind.clients else None
    if clients is not None and kind.records:  # records pay for every local step
        clients = dataclasses.replace(clients, rounds=min(clients.rounds, 20), local_steps=1)
        chosen = dataclasses.replace(chosen, epsilon=clients.epsilon)
    if secure:  # records' noise in shares takes one step a round
        chosen = dataclasses.replace(chosen, local_steps=1, local_epochs=None)
    parts = (
        "# A run of quietsum: who takes part, how they train, what privacy is promised.\n"
        "# What it costs, before anything is spent:  quietsum plan <this file>",
        f"[task]\nname = {json.dumps(task, ensure_ascii=False)}",
        *([options] if options else []),
        _federation(task, chosen, clients, secure),
        _training(chosen, clients),
        "\n".join((*_privacy(kind, chosen, clients, preset, secure), *_accounting(secure and kind.clients))),
        _aggregation(chosen, clients, secure),
    )
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------ the sections


def _federation(task: str, chosen: Defaults, clients: Clients | None, secure: bool) -> str:
    rounds = chosen.rounds if clients is None else clients.rounds
    parties = chosen.parties if clients is None else clients.parties or chosen.parties
    lines = ["[federation]", f"rounds = {rounds}"]
    if chosen.split != "natural":
        lines.append(_line(f'split = "{chosen.split}"', 'dealt out alike; or "dirichlet(0.5)"'))
        lines.append(_line(f"parties = {parties}", "so many clients are made"))
    elif parties is not None:
        lines.append(_line('split = "natural"', "what the records say, wholly in ..."))
        lines.append(_line(f"parties = {parties}", "... one of so many clients"))
    else:
        lines.append(_line('split = "natural"', "the task's own sites"))
        if task not in DEFAULTS:
            lines.append('# split = "iid"                   # or make parties = 4 of a torch task')
        lines.append('# parties = ["first", "second"]   # all parties of the task, if omitted')
    if clients is not None and clients.cohort < 1 and secure and parties is not None:
        size = round(parties * clients.cohort)
        lines.append(f'sampling = {{ kind = "fixed-size", size = {size} }}  # or {{ kind = "everyone" }}')
    elif clients is not None and clients.cohort < 1 and not secure:
        lines.append(f'sampling = {{ kind = "poisson", rate = {clients.cohort} }}  # or {{ kind = "everyone" }}')
    else:
        other = '{ kind = "fixed-size", size = 5 }' if secure else '{ kind = "poisson", rate = 0.1 }'
        lines.append(f'sampling = {{ kind = "everyone" }}  # or {other}')
    if clients is None:
        lines.append(_line("minimum_parties = 1", "a round with fewer replies fails"))
    lines.append(_line("spare_attempts = 0", "rounds that may be lost; paid in advance"))
    return "\n".join(lines)


def _training(chosen: Defaults, clients: Clients | None) -> str:
    values = chosen if clients is None else clients
    steps = values.local_steps
    length = (
        _line(f"local_steps = {steps}", "steps in a round; or local_epochs")
        if steps is not None
        else _line(f"local_epochs = {chosen.local_epochs}", "passes over the records; or local_steps")
    )
    rate = values.sample_rate
    return "\n".join((
        "[training]",
        _line(f"sample_rate = {rate}", "a record's chance per batch; or batch_size"),
        length,
        f'optimizer = {{ kind = "sgd", learning_rate = {values.learning_rate}, momentum = 0.0 }}',
        _line("# proximal = 0.1", "FedProx: a pull towards the server's model"),
    ))  # fmt: skip


def _accounting(seen: bool) -> tuple[str, str]:
    """How ε is computed; ``seen`` is whether who takes part is known, which add-or-remove-one would hide."""
    return (
        'accounting = "exact"              # or "rdp", "moments": looser, more noise',
        'neighbours = "zero-out"           # or "replace-one"; who takes part is seen'
        if seen
        else 'neighbours = "add-or-remove-one"  # or "zero-out", "replace-one"',
    )


def _privacy(kind: Style, chosen: Defaults, clients: Clients | None, preset: str | None, secure: bool) -> list[str]:
    protects = {
        Style.SAMPLE: 'protects each record; "none": nothing',
        Style.USER: "protects each client as a whole",
        Style.HYBRID: "protects each record, and each client",
    }
    lines = ["[privacy]", _line(f'style = "{kind}"', protects[kind])]
    if kind.records:
        lines += _records(chosen, preset, secure and clients is None)
    if clients is not None and secure:
        client = f"epsilon = {clients.epsilon}, delta = {clients.delta:g}, max_norm = {clients.max_norm}"
        lines += [
            "# Each client's update is clipped to max_norm, and every client adds a share of",
            "# the noise, so the sum that the server opens has it already.",
            f'client = {{ {client}, noise_at = "distributed" }}',
        ]
    elif clients is not None:
        client = f"epsilon = {clients.epsilon}, delta = {clients.delta:g}, max_norm = {clients.max_norm}"
        lines += [
            "# Each client's update is clipped to max_norm; noise hides whose it was. It",
            "# needs hundreds of clients: quietsum plan says whether there are enough.",
            f"client = {{ {client} }}",
            "# Against the server, too, with noise at every party, and much more of it;",
            '# who sends is seen, so this needs neighbours = "zero-out" below:',
            f'# client = {{ {client}, noise_at = "party" }}',
            "# The clip may follow the updates' median norm:",
            f"# client = {{ {client}, adaptive = {{}} }}",
        ]
    return lines


def _records(chosen: Defaults, preset: str | None, shared: bool) -> list[str]:
    """The promise to records; ``shared`` is whether each party adds a share of its noise."""
    clip = f"max_grad_norm = {chosen.max_grad_norm}" + (', noise_at = "distributed"' if shared else "")
    record = f"record = {{ epsilon = {chosen.epsilon}, delta = {chosen.delta:g}, {clip} }}"
    named = [f"#   {name:<14} ε {one.epsilon:g} per record" for name, one in PRESETS.items()]
    if preset is None:
        lines = [
            "# The noise is calibrated so that the whole run stays within ε and δ.",
            record,
            "# What all runs on the same data may cost together is fixed by the first of",
            "# them; if omitted, that is ε above, and no second run fits. To keep room:",
            f"# lifetime = {{ epsilon = {4 * chosen.epsilon:g}, delta = {chosen.delta:g} }}, in the braces of record",
            "# Or a promise with a name, instead of epsilon and delta:",
            *named,
            '# preset = "privacy_medium"',
        ]
    else:
        lines = [
            "# A promise with a name; the noise is calibrated to keep it:",
            *named,
            f'preset = "{preset}"',
            f"record = {{ {clip} }}"
            if shared
            else _line(f"record = {{ {clip} }}", "the clip of one record's gradient"),
            "# Or state it yourself, instead of the preset:",
            f"# {record}",
        ]
    if chosen.person is not None:
        name, most = chosen.person
        lines += [
            f"# What a whole {name} pays, for at most so many of its records:",
            f"{'' if chosen.promises_person else '# '}person = {{ id = {json.dumps(name)}, max_records = {most} }}",
            "# kept = 0.3 in its braces: the share of all records that this leaves, if known",
        ]
    return lines


def _aggregation(chosen: Defaults, clients: Clients | None, secure: bool) -> str:
    momentum = chosen.momentum if clients is None else clients.momentum
    weights = ("size", 'by declared size, or "equal"') if clients is None else ("equal", "a client's size is its own")
    if secure and clients is None:
        weights = ("size", "every record counts alike")
    server = f'{{ kind = "fedavgm", momentum = {momentum} }}' if momentum else '{ kind = "fedavg" }'
    adam = chosen.adam if clients is None else None
    moved: tuple[str, ...] = (
        _line(f"optimizer = {server}", 'or "fedadam"' if momentum else 'or "fedavgm", "fedadam"'),
    )
    if adam is not None:
        why = (
            "at any noise"
            if chosen.pace == 1.0
            else f"times {chosen.pace:.1f} for {'short' if chosen.pace > 1 else 'long'} rows"
        )
        moved = (
            _line('optimizer.kind = "adam"', 'or "fedavgm", "fedavg"'),
            _line(f"optimizer.learning_rate = {float(f'{adam * chosen.pace:.2g}')}", f"0.4 / √rounds, {why}"),
            _line("optimizer.floor = 1e-6", "below the noise of any step"),
            _line("optimizer.average = 0.9", "a running mean of models: less noise"),
        )
    return "\n".join((
        "[aggregation]",
        *_rule(clients is None and not secure),
        _line(f'weights = "{weights[0]}"', weights[1]),
        *moved,
        *(_mask_lines(chosen, clients) if secure else _offer_masks(clients)),
    ))  # fmt: skip


def _rule(judged: bool) -> tuple[str, ...]:
    """The mean; ``judged`` is whether another rule could take its place as the plan stands."""
    mean = _line('rule = "mean"', "believes every update")
    if not judged:
        return (mean, "# Against bad updates: quietsum explain robust aggregation")
    return (
        mean,
        '# Against bad updates, with weights = "equal" (quietsum explain rule, or drill):',
        _line('# rule = "median"', 'from ten sites on "signguard"'),
        _line("# attackers = 1", "so many updates of a round may be anything"),
    )


def _mask_lines(chosen: Defaults, clients: Clients | None) -> tuple[str, ...]:
    many = (chosen.parties if clients is None else clients.parties or chosen.parties) or 0
    asked = many if clients is None else round(many * clients.cohort)
    lost = (
        ("0.1", "the share of parties that a round may lose") if asked >= 20 else ("0.0", "0.25: of four, one may drop")
    )
    return (
        _line("secure = true", "the server sees one masked sum"),
        _line(f"drop_outs = {lost[0]}", lost[1]),
        _line(f"colluders = {max(1, asked // 20)}", "parties that may tell the server all"),
        _line('adversary = "curious"', 'or "semi-malicious": it may lie'),
    )


def _offer_masks(clients: Clients | None) -> tuple[str, ...]:
    whose = "record" if clients is None else "client"
    more = ", one sample_rate, local_steps = 1" if clients is None else ', neighbours = "zero-out"'
    return (
        "# The server sees one masked sum instead of each update; from four parties on:",
        "# secure = true",
        _line("# drop_outs = 0.1", "the share of parties that a round may lose"),
        "# With both, every party may add a share of the noise instead of all of it:",
        f'# noise_at = "distributed" in {whose} above{more}',
    )


def _line(setting: str, comment: str) -> str:
    return f"{setting:<33} # {comment}"
