"""``quietsum selfcheck``: is the private step what it claims to be? On made-up rows, in seconds."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next, text_width
from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.selfcheck import CheckReport, StepUnderTest

__all__ = ["finite_values", "selfcheck", "show_report"]

CONTRADICTED = 5

TaskOption = Annotated[
    str,
    typer.Option("--task", metavar="T", help="heart, digits, … or my_module:MyTask.", autocompletion=opt.complete_task),
]
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="E", help="auto, bookkeeping, vmap, opacus, opacus-ghost, naive or compiled.")
]
SigmaOption = Annotated[float, typer.Option("--noise-multiplier", "-s", metavar="σ", help="Noise over the clip norm.")]
RateOption = Annotated[
    float, typer.Option("--sample-rate", "-q", metavar="q", help="Chance that a record is in a step.")
]
NormOption = Annotated[float, typer.Option("--max-grad-norm", metavar="C", help="Each gradient is clipped to it.")]
ClientsOption = Annotated[
    int | None,
    typer.Option("--clients", metavar="N", help="Check the sum of N clients' updates instead.", show_default=False),
]
SharesOption = Annotated[
    int | None,
    typer.Option(
        "--shares",
        metavar="H",
        help="Check a sum whose noise H honest parties add in shares; records, or --clients.",
        show_default=False,
    ),
]
AdaptiveOption = Annotated[bool, typer.Option("--adaptive", help="With --clients: the clip adapts.")]
ModeOption = Annotated[str, typer.Option("--noise", metavar="MODE", help="fast or secure.")]


def selfcheck(
    task: TaskOption = "heart",
    engine: EngineOption = "auto",
    noise_multiplier: SigmaOption = 1.1,
    sample_rate: RateOption = 0.05,
    max_grad_norm: NormOption = 1.0,
    noise: ModeOption = "fast",
    clients: ClientsOption = None,
    adaptive: AdaptiveOption = False,
    shares: SharesOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Check that a task's private step is what it claims: clip, noise, draws, books.

    Example: quietsum selfcheck --task heart
    Example: quietsum selfcheck --clients 500 --sample-rate 0.1
    Example: quietsum selfcheck --shares 4

    Eleven tests on made-up rows; no protected record is read. A correct step
    fails less than once in a million runs. Exit code 5: the claim is false.
    """
    from quietsum.selfcheck import run_selfcheck
    from quietsum.validate import positive, probability

    if noise not in ("fast", "secure"):
        raise InvalidParameter("noise", noise, "is unknown", "choose 'fast' or 'secure'")
    if probability("sample_rate", sample_rate) == 0:
        raise InvalidParameter("sample_rate", sample_rate, "draws no record", "pass batch_size / dataset_size")
    settings = {
        "noise_multiplier": positive("noise_multiplier", noise_multiplier),
        "rate": sample_rate,
        "max_norm": positive("max_grad_norm", max_grad_norm),
        "mode": noise,
        "engine": engine,
    }
    if shares is not None:
        if adaptive:
            raise InvalidParameter("adaptive", True, "needs noise at the server", "leave --shares or --adaptive out")
        step, close = _step_in_shares(shares, clients, settings)
    elif clients is not None:
        step, close = _client_step(clients, adaptive, settings)
    elif adaptive:
        raise InvalidParameter("adaptive", True, "is about clients", "add --clients, 500 for instance")
    else:
        found = _task(task)
        step, close = _numpy_step(found, settings) if hasattr(found, "gradients") else _torch_step(found, settings)
    with close:
        report = run_selfcheck(step)
    if as_json:
        print_json({"exit_code": 0 if report.passed else CONTRADICTED, **finite_values(report.to_dict())})
    else:
        show_report(report)
    return 0 if report.passed else CONTRADICTED


def _task(name: str) -> Any:
    """A numpy task or a torch task; of one's own class whichever it is."""
    from quietsum.tasks import TASKS, TRAINABLE, nearest_name, task_named, trainable_task

    if name in TASKS:
        return task_named(name)
    if name in TRAINABLE:
        return trainable_task(name)
    if ":" not in name:
        remedy = nearest_name(name, [*TASKS, *TRAINABLE], 'or write "my_module:MyTask"')
        raise InvalidParameter("task", name, "is not known", remedy)
    try:
        return task_named(name)
    except InvalidParameter:
        return trainable_task(name)


def _numpy_step(task: Any, settings: dict[str, Any]) -> tuple[StepUnderTest, Any]:
    """The descent that ``quietsum run`` uses, on this task's gradients."""
    import contextlib

    from quietsum.learning import CheckedDescent, MadeUp
    from quietsum.mechanisms import ClippedSum, Mode

    if settings["engine"] != "auto":
        problem = "is for torch models, and this task is written in numpy"
        raise InvalidParameter("engine", settings["engine"], problem, "leave --engine out")
    mechanism = ClippedSum(
        max_norm=settings["max_norm"], noise_multiplier=settings["noise_multiplier"], mode=Mode(settings["mode"])
    )
    rows = None
    if hasattr(task, "example"):
        example = task.example()
        rows = MadeUp.like((example.features, example.labels))
    population = max((int(party.size or 1) for party in task.parties()), default=1)
    step = CheckedDescent(
        task,
        task.initial(),
        mechanism=mechanism,
        rate=settings["rate"],
        population=population,
        rows=rows,
        name=f"{task.name}, numpy",
    )
    return step, contextlib.nullcontext()


def _client_step(clients: int, adaptive: bool, settings: dict[str, Any]) -> tuple[StepUnderTest, Any]:
    """The clipped sum of a round, on made-up clients of unequal size of whom some drop out."""
    import contextlib

    from quietsum.aggregation import ClientSum
    from quietsum.federation import CheckedClients
    from quietsum.mechanisms import ClippedSum, Mode, QuantileRule
    from quietsum.validate import whole_number

    count = whole_number("clients", clients, 1)
    noise, expected = settings["noise_multiplier"], settings["rate"] * count
    rule = QuantileRule(count_noise=max(expected / 20, noise)) if adaptive else None
    if rule is not None:
        noise = rule.sum_noise(noise)
    mechanism = ClippedSum(max_norm=settings["max_norm"], noise_multiplier=noise, mode=Mode(settings["mode"]))
    claim = ClientSum(mechanism=mechanism, denominator=expected, dimension=20, adaptive=rule)
    name = f"sum of {count:,} clients" + (", clip adapts" if adaptive else "")
    return CheckedClients(claim, rate=settings["rate"], population=count, name=name), contextlib.nullcontext()


def _step_in_shares(shares: int, clients: int | None, settings: dict[str, Any]) -> tuple[StepUnderTest, Any]:
    """The opened sum of simulated parties that add noise in shares, at the floor: as little noise as it may hold."""
    import contextlib

    from quietsum.federation import CheckedShares
    from quietsum.mechanisms import DistributedNoise
    from quietsum.validate import whole_number

    honest = whole_number("shares", shares, 1)
    records = clients is None
    if clients is not None and whole_number("clients", clients, 1) < honest:
        raise InvalidParameter("shares", honest, f"exceeds clients = {clients}", "a floor counts survivors")
    population = 1000 if clients is None else clients
    rate = settings["rate"] if records else 1.0  # clients are not amplified: who is there is seen
    claim = DistributedNoise(
        max_norm=settings["max_norm"], noise_multiplier=settings["noise_multiplier"], honest=honest, dimension=60,
        unit="record" if records else "client", ball=settings["max_norm"] * population if records else None,
    )  # fmt: skip
    name = f"sum of {'records' if records else 'clients'}, noise in shares of {honest} honest parties"
    return CheckedShares(claim, rate=rate, population=population, name=name), contextlib.nullcontext()


def _torch_step(task: Any, settings: dict[str, Any]) -> tuple[StepUnderTest, Any]:
    """The task's model and loss with the engine asked for; only shapes of its data are used."""
    from quietsum.learning import while_checking, wrap_task

    step, model = wrap_task(task, **settings)
    return step, while_checking(model)


def show_report(report: CheckReport) -> None:
    """A report for people: the claim, a line a test, the answer."""
    claim = report.claim
    print(textwrap.fill(f"{report.step}: one step claims", text_width()))
    print(f"  one record moves the sum by at most  {claim['sensitivity']:g}")
    print(f"  noise multiplier                     {claim['noise_multiplier']:g}")
    print(f"  chance that a record is drawn        {claim['rate']:g}")
    print()
    print("test and what it looks at     verdict  found / limit")
    for line in report.lines():
        print(line)
    print()
    if report.passed:
        print(f"Nothing speaks against the claim ({report.seconds:.1f} s).")
        print_next(["explain", "noise_multiplier"])
    else:
        names = ", ".join(finding.name for finding in report.failures)
        print(
            textwrap.fill(f"The claim is false: {names}. Do not train protected records with this step.", text_width())
        )


def finite_values(value: Any) -> Any:
    """NaN has no place in JSON; a statistic that is none is null."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        return {key: finite_values(item) for key, item in value.items()}
    return [finite_values(item) for item in value] if isinstance(value, list) else value
