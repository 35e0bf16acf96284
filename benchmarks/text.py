"""Language models on real text: bits per byte without privacy, at record ε 8 and 3, beside Opacus, and federated LoRA.

    python benchmarks/text.py                        all rows on a CPU
    python benchmarks/text.py --device cuda          a larger network and longer texts
    python benchmarks/text.py --rows central         one part: central or federated
    python benchmarks/text.py --quick                a few steps of each: does everything run?

The texts document Python's standard library (task ``text``); a record is a document. Central rows train a transformer
over bytes from random weights, with the same batches, epochs, optimizer and schedule beside each other: no privacy,
quietsum (automatic clipping, its default where records have no class), quietsum with flat clipping, and Opacus (flat
clipping, Poisson batches, its PRV accountant). Federated rows begin with a base that was trained without privacy on the
modules of one half, by a hash of their names, and train adapters of rank 4 on the other half's: 20 sites at ε 8 per
record, and 500 simulated clients at ε 8 per client. Scores stand on documents of the second half that nobody trains on.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "2")  # before numpy and torch are imported

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

Values = dict[str, Any]
SETTINGS: dict[str, Values] = {
    "cpu": {"network": "small", "length": 64, "epochs": 8, "batch": 256, "rounds": 20, "plain": 0.005},
    "cuda": {"network": "medium", "length": 128, "epochs": 60, "batch": 1024, "rounds": 60, "plain": 0.003},
    "quick": {"network": "small", "length": 16, "epochs": 1, "batch": 20, "rounds": 1, "plain": 0.005, "most": 400},
}
DELTA = 1e-5


def say(name: str, bits: float, spent: str, seconds: float) -> None:
    """One line of the table, as soon as it is known."""
    print(f"{name:<44}  {bits:>13.3f}  {spent:<24}  {seconds:>7.0f} s", flush=True)


def score(task: Any, model: Any) -> float:
    """Bits per byte on documents that do not train."""
    import torch

    from quietsum.learning import scoring

    with torch.no_grad(), scoring(model):
        return float(task.evaluate(model).values["bits_per_byte"])


def read_rows(task: Any, setting: Values) -> Any:
    """The records that train."""
    (rows,) = task.records()
    return rows[: setting.get("most", len(rows))]


def fresh(task: Any, device: str) -> Any:
    """The same first weights every time."""
    from quietsum.learning import fresh_model

    return fresh_model(task, 0).to(device)


# ------------------------------------------------------------------------------------------------------- central


def train_plainly(task: Any, model: Any, setting: Values, device: str) -> None:
    """Shuffled batches and Adam on a line to 0: no privacy."""
    import torch

    rows = read_rows(task, setting).to(device)
    steps = setting["epochs"] * max(1, len(rows) // setting["batch"])
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=setting["plain"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(setting["epochs"]):
        order = torch.randperm(len(rows), device=device)
        for batch in order.split(setting["batch"])[: max(1, len(rows) // setting["batch"])]:
            optimizer.zero_grad()
            task.loss(model, (rows[batch],)).mean().backward()
            optimizer.step()
            schedule.step()


def train_ours(task: Any, model: Any, setting: Values, epsilon: float, clipping: str) -> str:
    """PrivateTrainer; returns what it claims."""
    from quietsum import PrivacyConfig, PrivateTrainer

    config = PrivacyConfig(
        epsilon=epsilon, delta=DELTA, epochs=setting["epochs"], batch_size=setting["batch"], clipping=clipping
    )
    trainer = PrivateTrainer(model, config, loss=task.loss)
    trainer.train((read_rows(task, setting),))
    return f"ε {trainer.guarantee().epsilon:.3f} per record"


def train_opacus(task: Any, model: Any, setting: Values, epsilon: float, device: str) -> str:
    """Opacus with its own loader, noise and accountant; the optimizer and schedule that ours has."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    from quietsum.learning.defaults import choose_rate

    data = TensorDataset(read_rows(task, setting))
    loader = DataLoader(data, batch_size=setting["batch"])
    steps = setting["epochs"] * len(loader)
    engine = PrivacyEngine(accountant="prv")
    optimizer = torch.optim.Adam(model.parameters(), lr=choose_rate(steps, tokens=True))
    made, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=loader, target_epsilon=epsilon, target_delta=DELTA,
        epochs=setting["epochs"], max_grad_norm=1.0,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    for _ in range(setting["epochs"]):
        for (rows,) in loader:
            optimizer.zero_grad()
            if len(rows):
                task.loss(made, (rows.to(device),)).mean().backward()
                optimizer.step()
            schedule.step()
    return f"ε {engine.get_epsilon(DELTA):.3f} per record"


def run_central(setting: Values, device: str) -> None:
    """From random weights, one row each."""
    from quietsum.tasks.gallery.text import TextTask

    task = TextTask(network=setting["network"], length=setting["length"])
    print(f"{task.size:,} documents, {sum(one.numel() for one in fresh(task, 'cpu').parameters()):,} weights")
    began, model = time.time(), fresh(task, device)
    train_plainly(task, model, setting, device)
    say("no privacy", score(task, model), "none", time.time() - began)
    for epsilon in (8.0, 3.0):
        for clipping in ("automatic", "flat"):
            began, model = time.time(), fresh(task, device)
            spent = train_ours(task, model, setting, epsilon, clipping)
            say(f"quietsum, {clipping} clipping", score(task, model), spent, time.time() - began)
        began, model = time.time(), fresh(task, device)
        try:
            spent = train_opacus(task, model, setting, epsilon, device)
        except Exception as error:
            print(f"Opacus does not run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        say("Opacus, flat clipping", score(task, model), spent, time.time() - began)


# ----------------------------------------------------------------------------------------------------- federated


def write_halves(folder: Path) -> tuple[Path, Path, Path]:
    """Folders with the base's documents, the federation's and the scored ones."""
    from quietsum.tasks.gallery.files.text import read_library

    def place(text: str) -> float:
        return zlib.crc32(text.encode()) / 2**32

    names = ("base", "sites", "scored")
    for name in names:
        (folder / name).mkdir()
    with (
        (folder / "base" / "rows.jsonl").open("w") as base,
        (folder / "sites" / "rows.jsonl").open("w") as sites,
        (folder / "scored" / "rows.jsonl").open("w") as scored,
    ):
        for one in read_library():
            kept = base if place(one.site) < 0.5 else scored if place(one.text) < 0.15 else sites
            kept.write(json.dumps({"text": one.text, "site": one.site}) + "\n")
    base_folder, sites_folder, scored_folder = (folder / name for name in names)
    return base_folder, sites_folder, scored_folder


def plans(setting: Values, options: Values, base: str) -> Iterator[tuple[str, Any]]:
    """Each federation: what it is called, and its plan."""
    from quietsum.plan import (
        AggregationPlan,
        ClientPlan,
        FederationPlan,
        OptimizerPlan,
        Plan,
        PrivacyPlan,
        RecordPlan,
        SamplingPlan,
        ServerOptimizerPlan,
        Style,
        TaskPlan,
        TrainingPlan,
    )

    sites = FederationPlan(rounds=setting["rounds"], parties=20)
    clients = FederationPlan(
        rounds=setting["rounds"], split="iid", parties=500, sampling=SamplingPlan(kind="poisson", rate=0.2)
    )
    record = PrivacyPlan(style=Style.SAMPLE, record=RecordPlan(epsilon=8.0, delta=DELTA, max_grad_norm=0.5))
    client = PrivacyPlan(style=Style.USER, client=ClientPlan(epsilon=8.0, delta=1e-4, max_norm=0.3))
    none = PrivacyPlan(style=Style.NONE)
    for name, federation, privacy, rate, weights in (
        ("20 sites, no privacy", sites, none, 1.0, "size"),
        ("20 sites, ε 8 per record", sites, record, 1.0, "size"),
        ("500 clients, no privacy", clients, none, 1.0, "equal"),
        ("500 clients, ε 8 per client", clients, client, 1.0, "equal"),
    ):
        yield name, Plan(
            task=TaskPlan(name="text", options=options, base=base), federation=federation, privacy=privacy,
            training=TrainingPlan(
                sample_rate=0.25 if federation is sites else 1.0, local_steps=2,
                optimizer=OptimizerPlan(learning_rate=rate),
            ),
            aggregation=AggregationPlan(
                weights=weights, optimizer=ServerOptimizerPlan(kind="fedavgm", momentum=0.9)
            ),
        )  # fmt: skip


def play(plan: Any, device: str) -> tuple[float, str]:
    """Every round is reserved, made and committed; bits per byte and what is claimed."""
    from quietsum.federation.local import LocalFederation
    from quietsum.federation.round import first_state, run_round
    from quietsum.ledger import Ledger, MemoryStore
    from quietsum.ledger.chain.keys import SigningKey
    from quietsum.mechanisms.rng import system_randomness
    from quietsum.plan import resolve
    from quietsum.tasks import task_of

    task = task_of(plan, device=device)
    resolved = resolve(plan, task.parties(), task.dimension)
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        "run", plan=plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(), datasets=resolved.datasets()
    )
    federation, rng = LocalFederation.of(task, resolved), system_randomness()
    state = first_state(resolved, task.initial())
    for number in range(1, plan.federation.rounds + 1):
        state = run_round("run", number, state, resolved=resolved, federation=federation, ledger=ledger, rng=rng).state
    bits = float(task.evaluate(state.model).values["bits_per_byte"])
    whole = resolved.forecast().whole if resolved.protected else ()
    return bits, ", ".join(f"ε {one.epsilon:.3f} per {one.whom}" for one in whole[:1]) or "none"


def run_federated(setting: Values, device: str) -> None:
    """Adapters beside a frozen base, one row each."""
    from safetensors.torch import save_file

    from quietsum.tasks import FederatedTorch
    from quietsum.tasks.gallery.text import TextTask

    with tempfile.TemporaryDirectory() as place:
        base_folder, sites_folder, scored = write_halves(Path(place))
        options = {
            "network": setting["network"], "length": setting["length"], "score_folder": str(scored),
            "public": "published with Python",
        }  # fmt: skip
        began, task = time.time(), TextTask(folder=base_folder, **options)
        model = fresh(task, device)
        train_plainly(task, model, setting, device)
        say("the base alone", score(task, model), "none: published texts", time.time() - began)
        file = Path(place) / "base.safetensors"
        save_file({name: value.cpu().contiguous() for name, value in model.state_dict().items()}, file)
        options |= {"folder": str(sites_folder), "adapters": 4, "base": str(file)}
        made = FederatedTorch(TextTask(**options), parties=20)
        print(f"{made.dimension:,} weights travel, the base stays ({made.base[:12]}…)")
        for name, plan in plans(setting, options, made.base):
            began = time.time()
            bits, spent = play(plan, device)
            say(name, bits, spent, time.time() - began)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", nargs="+", default=["central", "federated"], choices=("central", "federated"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    setting = SETTINGS["quick" if given.quick else given.device]
    print(f"{'':<44}  {'bits per byte':>13}  {'spent':<24}  {'took':>9}")
    if "central" in given.rows:
        run_central(setting, given.device)
    if "federated" in given.rows:
        run_federated(setting, given.device)


if __name__ == "__main__":
    main()
