"""A run from its first reservation to its model: start, resume, stop.

Every round ends in a checkpoint that names the ledger's head. Resuming recomputes what the checkpoint claims from its
own history and from the ledger, and refuses when they disagree. A round that was reserved and not checkpointed is made
again as a new attempt with fresh noise, and charged again: a crash over-counts, it never forgets. A run that asks sites
elsewhere goes on with them or not at all, and one of this machine never turns to sites.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, final

import numpy as np

from quietsum.aggregation import RULE, ServerState, Vector, check_slots
from quietsum.defence import Detector, Finding
from quietsum.errors import (
    BudgetExhausted,
    CorruptState,
    InvalidParameter,
    LedgerBroken,
    PlanRefused,
    QuietsumError,
    TooFewParties,
)
from quietsum.failpoints import reach
from quietsum.federation import (
    ClientCanaries,
    Federation,
    GuardedWatcher,
    LocalFederation,
    RoundFinished,
    RunFinished,
    RunStarted,
    Watcher,
    first_state,
    group_name,
    guard,
    refuse_drill,
    refuse_unmasked,
    run_round,
    tell,
    tell_findings,
)
from quietsum.learning import canaries_of
from quietsum.ledger import Ledger, RunHistory, claim_guarantees, ledger_exists
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.party import rehearse_task
from quietsum.plan import Plan, ResolvedPlan, card, resolve
from quietsum.privacy import Guarantee
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.checkpoint import RunCheckpoint
from quietsum.runs.facts import TaskFacts
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.privacy import block, check_block
from quietsum.runs.weights import save_weights
from quietsum.tasks import AnyTask, Metrics, Task, as_task, rehearse_root, task_of, trial_for

__all__ = ["RunResult", "check_anchors", "check_whom", "resume_run", "start"]

log = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended. ``error`` is what stopped it (None: it finished); the model of the last round is kept."""

    folder: RunFolder
    resolved: ResolvedPlan
    outcome: str
    round: int
    metrics: Metrics
    claims: tuple[Guarantee, ...]
    error: QuietsumError | None = None


def start(
    plan: Plan,
    *,
    workspace: Workspace,
    name: str | None = None,
    watchers: Iterable[Watcher] = (),
    task: AnyTask | None = None,
    federation: Federation | None = None,
    workers: int = 1,
    device: str = "cpu",
    rng: RandomSource | None = None,
    allowed: Callable[[Task, ResolvedPlan], None] | None = None,
    opened: Callable[[RunFolder], None] | None = None,
) -> RunResult:
    """Run ``plan`` from its first round. Everything that can be refused is refused before anything is spent.

    ``workers`` processes train the clients, on ``device``, where no ``federation`` is passed; a federation that is
    passed is its owner's to close. ``allowed`` is called with task and plan when name and ledger are in order, before
    the run is opened, and refuses it by raising; ``opened`` is called with the folder of the run.
    """
    task = task_of(plan, device=device) if task is None else as_task(task)
    resolved = resolve(plan, task.parties(), task.dimension)
    remote = federation is not None and federation.remote
    if federation is not None:
        refuse_unmasked(resolved, federation)
        federation.check_plan(resolved)
        if not remote:
            _refuse_canaries_elsewhere(resolved)
    if remote:
        refuse_drill(resolved.plan)
    rehearse_task(task, resolved, resolved.parties[0].name, unseen=remote)
    rehearse_root(task, resolved)
    run = workspace.free_name(plan, name)
    with _ledger_in(workspace, create=True) as ledger:
        check_anchors(ledger, workspace)
        if allowed is not None:
            allowed(task, resolved)
        reach("run:before-open")
        _open(ledger, run, resolved)
        reach("run:opened")
        facts = TaskFacts.of(task)
        folder = workspace.create(plan, head=ledger.head, facts=facts, name=run, sites=remote, card=card(resolved))
        reach("run:folder")
        with folder.lock():
            state = first_state(resolved, task.initial())
            history = RunHistory(ledger, run).read()
            first = RunCheckpoint(
                run=run, plan=plan.digest, round=0, state=state, head=ledger.head, privacy=block(history, resolved)
            )
            checkpoints.save_checkpoint(folder.checkpoints, first, of_parties=_of_parties(resolved, state))
            reach("run:first-checkpoint")
            if opened is not None:
                opened(folder)
            with _federation(federation, task, resolved, workers, device, folder) as parties:
                return _go_on(first, folder, task, resolved, ledger, history, parties, rng, guard(watchers))


def resume_run(
    folder: RunFolder,
    *,
    workspace: Workspace,
    watchers: Iterable[Watcher] = (),
    task: AnyTask | None = None,
    federation: Federation | None = None,
    workers: int = 1,
    device: str = "cpu",
    rng: RandomSource | None = None,
    opened: Callable[[RunFolder], None] | None = None,
) -> RunResult:
    """Go on after the last checkpoint of ``folder``.

    Guarantees: the ledger must be the run's own and must contain the checkpoint's head, the ε in the checkpoint must
    come out again from its history, and that history must be the ledger's up to the head; otherwise nothing runs. Who
    was asked before is asked again: see :func:`check_whom`.
    """
    remote = federation is not None and federation.remote
    check_whom(folder, sites=remote, workspace=workspace)
    plan = folder.plan()
    task = task_of(plan, device=device) if task is None else as_task(task)
    with folder.lock(), _ledger_of(folder, workspace) as ledger:
        resolved = resolve(plan, task.parties(), task.dimension, pricing=_pricing(ledger, folder.run))
        if remote:
            refuse_drill(resolved.plan)
        rehearse_task(task, resolved, resolved.parties[0].name, unseen=remote)
        rehearse_root(task, resolved)
        check_anchors(ledger, workspace)
        _open(ledger, folder.run, resolved)  # a run that the ledger knows stays as it is
        history = RunHistory(ledger, folder.run)
        last = checkpoints.latest_checkpoint(folder.checkpoints)
        fresh = first_state(resolved, task.initial())
        if last is None:
            last = RunCheckpoint(
                run=folder.run, plan=plan.digest, round=0, head=ledger.head, state=fresh,
                privacy=block(history.read(), resolved),
            )  # fmt: skip
        if last.run != folder.run or last.plan != plan.digest:
            raise CorruptState(f"the newest checkpoint in {folder.checkpoints} belongs to another run or plan")
        try:
            check_slots(last.state, fresh)
        except CorruptState as problem:
            raise CorruptState(f"the newest checkpoint in {folder.checkpoints} does not fit: {problem}") from None
        if not ledger.contains(last.head):
            raise LedgerBroken(
                f"does not contain the head that the checkpoint of round {last.round} was saved with",
                at=last.head.sequence,
                remedy="the ledger was rolled back, truncated or replaced: restore it, then run quietsum ledger verify",
            )
        check_block(last, history.read(last.head.sequence), resolved)
        if TaskFacts.read(folder.path) is None:  # a folder of an older version
            TaskFacts.of(task).write(folder.path)
        if opened is not None:
            opened(folder)
        with _federation(federation, task, resolved, workers, device, folder) as parties:
            return _go_on(last, folder, task, resolved, ledger, history, parties, rng, guard(watchers))


def _refuse_canaries_elsewhere(resolved: ResolvedPlan) -> None:
    """PlanRefused where parties in this process that the run did not make would have to carry canaries."""
    if resolved.plan.training.canaries:
        raise PlanRefused(
            f"training.canaries = {resolved.plan.training.canaries}: this federation was made without canaries; leave "
            "them out, or let the run make its own federation"
        )


def _of_parties(resolved: ResolvedPlan, state: ServerState) -> tuple[str, ...]:
    """The slots of ``state`` that tell of single parties, which are the operator's alone (rule 5)."""
    remembers = resolved.robust is not None and resolved.robust.facts.remembers
    return tuple(name for name in state.slots if name.startswith(RULE)) if remembers else ()


def check_whom(folder: RunFolder, *, sites: bool, workspace: Workspace) -> None:
    """Refuse to go on with a run of sites on this machine, or the other way round.

    Guarantees: rounds that sites were enrolled for are never made up from the coordinator's own copy of the data, which
    no policy of theirs would see, and sites are never asked in the name of a run that they were not enrolled in.
    """
    if folder.sites == sites:
        return
    command = ["quietsum", "run", "--resume", folder.run]
    if folder.sites:
        problem = "asks sites elsewhere; on this machine alone it would go on without asking any of them"
        command += ["--on", "flower", "--keys", "DIR", "--superlink", "DIR"]
    else:
        problem = "was made on this machine alone; no site was enrolled in it"
    if workspace.path != Workspace.at().path:
        command += ["--workspace", str(workspace.path)]
    other = " (or --listen HOST:PORT instead of --superlink)" if folder.sites else ""
    raise InvalidParameter("run", folder.run, problem, f"go on with: {shlex.join(command)}{other}")


def check_anchors(ledger: Ledger, workspace: Workspace) -> int:
    """The newest head that each of the workspace's runs has kept must be in the ledger; returns how many (rule 11).

    A ledger that was rolled back, cut or replaced would give spent budget back. Checkpoints and models remember. One
    file of each run is read, so that the hundredth run does not wait for all files of the others.
    """
    count, name = 0, ledger.identity.ledger
    for path, head in workspace.newest_anchors():
        if head.ledger != name:
            raise LedgerBroken(
                f"{workspace.ledger} is not the one that {path} was paid from",
                remedy="put its own ledger back; runs of another workspace do not belong here, move them away",
            )
        if not ledger.contains(head):
            raise LedgerBroken(
                f"does not contain the head that {path} was saved with",
                at=head.sequence,
                remedy="it was rolled back, cut or replaced: restore the newest copy, then run quietsum ledger verify",
            )
        count += 1
    return count


def _pricing(ledger: Ledger, run: str) -> int | None:
    """The version of prices that a run's noise was fixed by; None for a run that the ledger does not know."""
    return next((known.pricing for known in ledger.runs() if known.run == run), None)


def _open(ledger: Ledger, run: str, resolved: ResolvedPlan) -> None:
    ledger.open_run(
        run,
        plan=resolved.plan.to_dict(),
        terms=resolved.terms(),
        planned=resolved.all_charges(),
        datasets=resolved.datasets(),
        lifetimes=resolved.lifetimes(),
    )


def _ledger_in(workspace: Workspace, *, create: bool) -> Ledger:
    """The workspace's ledger, a new one only where nothing was ever run."""
    if workspace.has_runs() and not ledger_exists(workspace.ledger):
        raise LedgerBroken(
            f"{workspace.ledger} is gone, and the workspace holds runs that were paid from it",
            remedy="put the ledger back from a copy; without it there is no record of what was spent",
        )
    return Ledger.open(workspace.ledger, create=create)


@contextlib.contextmanager
def _ledger_of(folder: RunFolder, workspace: Workspace) -> Iterator[Ledger]:
    with _ledger_in(workspace, create=False) as ledger:
        if ledger.identity.ledger != folder.ledger:
            raise LedgerBroken(
                f"{workspace.ledger} is not the one that run {folder.run} was paid from",
                remedy="state its workspace with --workspace, or restore its ledger",
            )
        yield ledger


@contextlib.contextmanager
def _federation(
    given: Federation | None, task: Task, resolved: ResolvedPlan, workers: int, device: str, folder: RunFolder
) -> Iterator[Federation]:
    """The federation that was passed, or one of this machine that is ended again in any case."""
    if given is not None:
        yield given
        return
    canaries = canaries_of(resolved, folder.path, folder.run)
    made = LocalFederation.of(task, resolved, workers=workers, device=device, canaries=canaries)
    try:
        yield made
    finally:
        made.close()


def _go_on(
    last: RunCheckpoint,
    folder: RunFolder,
    task: Task,
    resolved: ResolvedPlan,
    ledger: Ledger,
    history: RunHistory,
    federation: Federation,
    rng: RandomSource | None,
    watchers: tuple[GuardedWatcher, ...],
) -> RunResult:
    rng = rng or system_randomness()
    plan, state, done = resolved.plan, last.state, last.round
    rounds, limits = plan.federation.rounds, {limit.unit.value: limit.epsilon for limit in resolved.limits}
    measured = task.evaluate(state.model)
    tell(watchers, _first_event(folder, resolved, done + 1, measured))
    if not task.follows_orders and not resolved.client_level:
        log.info("the task trains by code of its own, so no bound is known on what a site may send")
    detector = _detector(task, resolved)
    canaries = ClientCanaries.of(resolved, folder.path, folder.run, rng)
    if done:
        log.info("detection remembers nothing of the rounds before %d; habits are looked for from here on", done + 1)
    outcome = "finished"
    error: QuietsumError | None = None
    try:
        federation.join(folder.run, resolved, ledger)
        for number in range(done + 1, rounds + 1):
            for watcher in watchers:
                watcher.check()  # a reader that has left may end the run here, where nothing is reserved
            federation.ready()
            checkpoints.check_space(folder.checkpoints, state)
            tried = trial_for(task, resolved, number)
            result = run_round(
                folder.run, number, state,
                resolved=resolved, federation=federation, ledger=ledger, rng=rng, watchers=watchers,
                own_steps=not task.follows_orders, detector=detector, canaries=canaries,
                trial=None if tried is None else tried(state.params, rng),
            )  # fmt: skip
            reach("run:before-checkpoint")
            checkpoints.save_checkpoint(
                folder.checkpoints,
                RunCheckpoint(
                    run=folder.run, plan=plan.digest, round=number, state=result.state, head=ledger.head,
                    privacy=block(history.read(), resolved),
                ),
                of_parties=_of_parties(resolved, result.state),
            )  # fmt: skip
            reach("run:checkpointed")
            moved = float(np.linalg.norm(result.state.params - state.params))
            state, done = result.state, number
            measured = task.evaluate(state.model)
            tell_findings(partial(_answers, task, state.model, detector, number), number, watchers)
            tell(
                watchers,
                RoundFinished(
                    round=number, rounds=rounds, asked=len(result.asked), kept=result.kept,
                    metrics=dict(measured.values), metrics_on=_on(measured),
                    spent=ledger.spending(folder.run), reserved=history.gross_spending(), limits=limits,
                    clip=state.clip, rejected=result.rejected, step_norm=moved,
                ),
            )  # fmt: skip
    except BudgetExhausted as problem:
        outcome, error = "budget", problem
    except TooFewParties as problem:
        outcome, error = "too-few-parties", problem
    except KeyboardInterrupt:
        tell(watchers, RunFinished(outcome="interrupted", round=done, reason="stopped by hand"))
        raise
    federation.leave(outcome)
    claimed = claim_guarantees(
        resolved.forecast(at=()).whole, finished=error is None, spare_attempts=plan.federation.spare_attempts
    )
    about = {
        "run": folder.run, "plan": plan.digest, "round": done, "outcome": outcome, "head": ledger.head.to_dict(),
        "guarantees": [guarantee.to_dict() for guarantee in claimed],
        "metrics": [
            {
                "name": name, "value": value, "on": measured.stands_on(name),
                **({"chance": measured.chance[name]} if name in measured.chance else {}),
            }
            for name, value in measured.values.items()
        ] if done else [],  # the model that everybody begins with says nothing about this run
        "references": _references(task, resolved) if done else {},
    }  # fmt: skip
    if plan.attack is not None:
        about["drill"] = plan.attack.words
    checkpoints.save_model(folder.model, state.model, about)
    _save_weights(folder, task, state.model, about)
    reach("run:model")
    tell(watchers, RunFinished(outcome=outcome, round=done, reason="" if error is None else str(error)))
    return RunResult(
        folder=folder, resolved=resolved, outcome=outcome, round=done, metrics=measured,
        claims=claimed, error=error,
    )  # fmt: skip


def _save_weights(folder: RunFolder, task: Task, params: Vector, about: Mapping[str, Any]) -> None:
    """The model as a state dict, too, where the task has a torch model. The run has its model without it."""
    try:
        if (named := task.named_weights(params)) is not None:
            save_weights(folder.weights, named, params, about)
    except Exception as error:  # a user's model may keep what is no tensor; a model that is paid for is not lost for it
        log.warning("%s is not written: %s: %s", folder.weights, type(error).__name__, error)


def _references(task: Task, resolved: ResolvedPlan) -> dict[str, float]:
    """Scores of models without privacy on the same data, where the task has them and all of its data is public."""
    if not all(party.public for party in resolved.parties):
        return {}
    parties = list(dict.fromkeys(party.account for party in resolved.parties))
    try:
        return {str(name): float(value) for name, value in task.references(parties).items()}
    except Exception as error:  # a model that is paid for is not lost for a comparison
        log.warning("the task's models without privacy cannot be made: %s: %s", type(error).__name__, error)
        return {}


def _detector(task: Task, resolved: ResolvedPlan) -> Detector:
    """What looks at the updates of this run: the plan's public numbers, and the classes' rows where a task has them."""
    names = [party.name for party in resolved.parties]
    weights = {} if resolved.robust is not None else {name: resolved.weight_of(name) for name in names}
    parts = {}
    try:
        parts = dict(task.class_rows())
    except Exception as error:  # a user's code; detection goes on without classes
        log.warning("the task's class rows cannot be read: %s: %s", type(error).__name__, error)
    if resolved.secure is not None and resolved.secure.grouping is not None:  # drawn anew in each round: no habits
        groups = [group_name(at) for at in range(resolved.secure.grouping.count)]
        return Detector(groups, dimension=resolved.dimension, parts=parts, subject_kind="group", windows=(1,))
    return Detector(
        names, dimension=resolved.dimension, parts=parts, weights=weights, rounds=resolved.plan.federation.rounds
    )


def _answers(task: Task, model: Vector, detector: Detector, number: int) -> list[Finding]:
    counts = task.confusion(model)
    return [] if counts is None else detector.answers(number, counts)


def _on(measured: Metrics) -> dict[str, str]:
    return {name: measured.stands_on(name) for name in measured.values}


def _first_event(folder: RunFolder, resolved: ResolvedPlan, first: int, measured: Metrics) -> RunStarted:
    limit, plan = resolved.limit, resolved.plan
    protected = not all(party.public for party in resolved.parties)
    values: dict[str, Any] = {"epsilon": None, "delta": None, "unit": None}
    if limit is not None:
        values = {"epsilon": limit.epsilon, "delta": limit.delta, "unit": limit.unit.value}
    return RunStarted(
        run=folder.run, task=plan.task.name, style=str(plan.privacy.style), parties=len(resolved.parties),
        rounds=plan.federation.rounds, first_round=first, protected=protected,
        note="" if plan.attack is None else plan.attack.words,
        metrics=dict(measured.values), chance=dict(measured.chance), **values,
    )  # fmt: skip
