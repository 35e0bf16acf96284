"""Detection: who is named under which attack, and how often nobody should have been, on digits and on card fraud.

``python benchmarks/detection.py [digits-10] [digits-50] [digits-10-noise] [fraud] [fraud-8] [heart] [unlike]
[backdoor] [--seeds 5]`` prints tables as Markdown.

Settings: digits at 10 parties (2 attack) and 50 (10), the federation of benchmarks/robustness.py for 64 rounds with the
mean, without noise and with record-level noise 1; fraud at ten banks of 19,900 payments each (2 attack), logistic
regression, every record in every step, 64 rounds, without noise and at a record-level ε of 8. ``heart`` is the demo of
four unlike hospitals, unattacked, by ``quietsum.runs``; ``unlike`` deals digits out by a Dirichlet law.

Attackers of LIE and IPM would all send one vector, which is noticed at once; here each changes it by a thousandth.

For each attack: the share of attackers that some finding named, the median round of the first one, by which rules, and
how many honest parties were named. Unattacked runs are judged at the usual rate and at a thousand times that, where
false alarms can be counted: how often each rule should have spoken, and how often it did. ``backdoor``
trains models with and without a backdoor and looks for it in the model and in the rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
os.environ["QUIETSUM_TEST_SEEDS"] = "1"  # published data; seeds make the table the same again
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import robustness
from numpy.typing import NDArray
from scipy import stats

from quietsum.aggregation.robust import Sent
from quietsum.defence import Seen, attack_named, flip_labels
from quietsum.defence.detection import RATE, Detector, Finding
from quietsum.defence.detection.backdoors import anomaly_indices, find_triggers, spectral_outliers, trigger_findings
from quietsum.defence.detection.detector import WINDOWS
from quietsum.defence.detection.outliers import naming_distance
from quietsum.mechanisms.rng import randomness_for_tests

Floats = NDArray[np.float64]
ROUNDS = 64
OFTEN = 1000 * RATE
ATTACKS: dict[str, tuple[str, float | None]] = {
    "sign flip": ("sign-flip", None),
    "label flip": ("label-flip", None),
    "Gaussian": ("gaussian", None),
    "LIE": ("lie", None),
    "IPM .5": ("ipm", 0.5),
    "model replacement": ("model-replacement", None),
    "backdoor": ("backdoor", None),
    "zeros": ("zero", None),
    "free rider": ("free-rider", None),
    "mimic": ("mimic", None),
}

Look = Callable[[int, Floats, Floats], None]
"""What is done with a round's number, its updates and its step."""


class Watch:
    """The detectors of one run, by rate, and what they found."""

    def __init__(
        self, parties: int, dimension: int, parts: Mapping[str, Any], noise: float, rates: Sequence[float]
    ) -> None:
        self.names = [f"party-{place}" for place in range(parties)]
        self.detectors = {
            rate: Detector(self.names, dimension=dimension, parts=parts, rounds=ROUNDS, rate=rate) for rate in rates
        }
        self.found: dict[float, list[Finding]] = {rate: [] for rate in rates}
        self.noise = np.full((parties, 2), noise)

    def saw(self, number: int, updates: Floats, step: Floats) -> None:
        """One round."""
        for rate, detector in self.detectors.items():
            with np.errstate(all="ignore"):
                self.found[rate] += detector.judge(number, detector.measure(self.names, updates, self.noise))
                self.found[rate] += detector.step(number, step)


def varied(updates: Floats, attack: str, attackers: int, number: int) -> Floats:
    """Attackers that would all send the same vector change theirs by a thousandth, so that no two are equal."""
    if attack not in ("lie", "ipm"):
        return updates
    found = updates.copy()
    some = np.random.default_rng(number).normal(size=(attackers, updates.shape[1])) / updates.shape[1] ** 0.5
    found[:attackers] += 1e-3 * np.linalg.norm(found[:attackers], axis=1, keepdims=True) * some
    return found


# ------------------------------------------------------------------------------------------------------ digits


def class_rows() -> dict[str, NDArray[np.int64]]:
    """The rows of the last layer, weights and bias."""
    start = robustness.DIMENSION - robustness.CLASSES * (robustness.HIDDEN + 1)
    weights = start + np.arange(robustness.CLASSES * robustness.HIDDEN).reshape(robustness.CLASSES, -1)
    biases = robustness.DIMENSION - robustness.CLASSES + np.arange(robustness.CLASSES)
    return {f"class {place}": np.append(weights[place], biases[place]) for place in range(robustness.CLASSES)}


def digits(attack: str, strength: float | None, seed: int, rates: Sequence[float], **given: Any) -> Watch:
    """One run on digits."""
    setting = robustness.Setting(steps=ROUNDS, **given)
    noise = robustness.RATE * setting.record_noise * setting.record_clip / robustness.BATCH
    watch = Watch(setting.parties, robustness.DIMENSION, class_rows(), noise, rates)
    number = 0

    def step(sent: Sent) -> tuple[Floats, NDArray[np.bool_], Mapping[str, Floats]]:
        nonlocal number
        number += 1
        updates = varied(sent.updates, attack, setting.attackers, number)
        change = updates.mean(axis=0)
        watch.saw(number, updates, change)
        return change, np.ones(len(sent), dtype=np.bool_), {}

    robustness.train(None, attack, strength, seed=seed, setting=setting, step=step)
    return watch


# ------------------------------------------------------------------------------------------------------- fraud

BANKS, FRAUDSTERS, FRAUD_RATE, CLIP = 10, 2, 250.0, 2.4


def payments() -> tuple[Floats, Floats]:
    """The training part of the first split: 31 features and a one, and labels."""
    from quietsum.tasks.gallery.fraud import FraudTask

    rows, labels = FraudTask().records()
    return np.column_stack([rows.numpy().astype(np.float64), np.ones(len(rows))]), labels.numpy().astype(np.float64)


def noise_multiplier(epsilon: float) -> float:
    """σ of a step on all records, 64 of them, at δ = 4e-7."""
    from quietsum.privacy.calibration import calibrate_noise

    return float(calibrate_noise(target_epsilon=epsilon, target_delta=4e-7, sample_rate=1.0, steps=ROUNDS))


def fraud(
    attack: str, strength: float | None, seed: int, rates: Sequence[float], *, rows: Floats, labels: Floats,
    sigma: float = 0.0,
) -> Watch:  # fmt: skip
    """One run on payments that are dealt out to ten banks; the first two attack."""
    chance = np.random.default_rng([seed, 7])
    theirs = randomness_for_tests(3000 + seed)
    own = np.array_split(chance.permutation(len(labels)), BANKS)
    attackers = FRAUDSTERS if attack else 0
    wanted = [labels[part] for part in own]
    for bank in range(attackers):
        if attack == "label-flip":
            wanted[bank] = flip_labels(wanted[bank], classes=2)
        if attack == "backdoor":  # the largest payments of the night are never fraud
            wanted[bank] = np.where(rows[own[bank]][:, 28] > 0.5, 0.0, wanted[bank])
    size = len(own[0])
    deviation = FRAUD_RATE * sigma * CLIP / size
    dimension = rows.shape[1]
    watch = Watch(BANKS, dimension, {}, deviation, rates)
    params, last = np.zeros(dimension), None
    params[-1] = np.log(0.0025 / 0.9975)
    held, lengths = [rows[part] for part in own], [np.linalg.norm(rows[part], axis=1) for part in own]
    for number in range(1, ROUNDS + 1):
        updates = np.empty((BANKS, dimension))
        for bank in range(BANKS):
            away = 0.5 * (1 + np.tanh(held[bank] @ params / 2)) - wanted[bank]
            away *= np.minimum(1, CLIP / np.maximum(np.abs(away) * lengths[bank], 1e-12))
            updates[bank] = -FRAUD_RATE * (away @ held[bank]) / size
        updates += deviation * chance.normal(size=updates.shape)
        if attack and attack not in ("label-flip", "backdoor"):
            seen = Seen(honest=updates[attackers:], own=updates[:attackers], rng=theirs, last=last)
            updates[:attackers] = attack_named(attack)(seen, strength)
        updates = varied(updates, attack, attackers, number)
        step = updates.mean(axis=0)
        watch.saw(number, updates, step)
        params, last = params + step, step
    return watch


# --------------------------------------------------------------------------------------------------- the tables


def thresholds(parties: int, dimension: int, classes: int, noisy: bool) -> str:
    """What each rule is held to, in words; thresholds by comparison are in deviations of the others."""
    windows = [width for width in WINDOWS if width <= ROUNDS]
    told = []
    for width in windows:
        rate = RATE * width / len(windows)
        far = {
            "norm": naming_distance(parties - 1, rate, heavy=True),
            "direction": naming_distance(parties - 1, rate / 2),
        }
        if classes:
            far["class-rows"] = naming_distance(parties - 1, rate / 2 / classes)
        words = [f"{rule} {value:.1f}" for rule, value in far.items()]
        if noisy:
            words.append(f"opposed −{-stats.norm.ppf(rate / 2 / parties):.2f}")
            least = stats.chi2.ppf(rate / parties, width * dimension) / (width * dimension)
            words.append(f"noise below {least:.2f} of its square")
        told.append(f"over {width} round{'s' * (width > 1)}: " + ", ".join(words))
    return "; ".join(told)


def named(found: Iterable[Finding]) -> set[str]:
    return {name for one in found if str(one.subject_kind) == "party" for name in one.subjects}


def attacked(run: Callable[[str, float | None, int, Sequence[float]], Watch], attackers: int, seeds: int) -> None:
    """A row an attack."""
    print("| attack | attackers named | first named in round | by | honest parties named | model's drift |")
    print("|---|---|---|---|---|---|")
    for title, (attack, strength) in ATTACKS.items():
        caught, accused, first, drift = 0, 0, list[int](), 0
        rules: Counter[str] = Counter()
        honest = 0
        for seed in range(seeds):
            watch = run(attack, strength, seed, (RATE,))
            bad = set(watch.names[:attackers])
            found = watch.found[RATE]
            caught += len(named(found) & bad)
            accused += len(named(found) - bad)
            honest += len(watch.names) - attackers
            for name in named(found) & bad:
                first.append(min(one.round for one in found if name in one.subjects))
                rules.update({one.rule for one in found if name in one.subjects})
            drift += any(str(one.subject_kind) == "model" for one in found)
        total = attackers * seeds
        by = ", ".join(f"{rule} {count}/{total}" for rule, count in rules.most_common()) or "–"
        when = f"{statistics.median(first):.0f}" if first else "–"
        print(f"| {title} | {caught} of {total} | {when} | {by} | {accused} of {honest} | {drift} of {seeds} |")
        sys.stdout.flush()


def unattacked(run: Callable[[str, float | None, int, Sequence[float]], Watch], seeds: int) -> None:
    """False alarms, expected and counted."""
    counted: dict[float, Counter[tuple[str, int]]] = {RATE: Counter(), OFTEN: Counter()}
    for seed in range(100, 100 + seeds):
        watch = run("", None, seed, (RATE, OFTEN))
        for rate, found in watch.found.items():
            counted[rate].update({(one.rule, one.round) for one in found})
    print(f"\nUnattacked, {seeds} runs of {ROUNDS} rounds:\n")
    print(f"| rule | alarms at {RATE:g} a round | expected at most | alarms at {OFTEN:g} a round | expected at most | "
          "99 % of chance |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    rounds = seeds * ROUNDS
    for rule in ("norm", "noise", "direction", "class-rows", "copy", "step-length", "step-direction"):
        few, many = (sum(count for (name, _), count in counted[rate].items() if name == rule) for rate in (RATE, OFTEN))
        most = int(stats.binom.isf(0.01, rounds, OFTEN))
        print(f"| {rule} | {few} | {RATE * rounds:.2g} | {many} | {OFTEN * rounds:.2g} | up to {most} |")


def digits_table(parties: int, attackers: int, noise: float, seeds: int) -> None:
    title = f"{parties} parties, {attackers} attack" + (f", record-level noise {noise:g}" if noise else ", no noise")
    print(f"\n### Digits, {title}\n")
    print(f"Thresholds: {thresholds(parties, robustness.DIMENSION, robustness.CLASSES, bool(noise))}.\n")

    def run(attack: str, strength: float | None, seed: int, rates: Sequence[float]) -> Watch:
        given = {"parties": parties, "attackers": attackers, "record_noise": noise}
        return digits(attack, strength, seed, rates, **given)

    attacked(run, attackers, seeds)
    unattacked(run, 2 * seeds)


def fraud_table(epsilon: float | None, seeds: int) -> None:
    print(f"\n### Fraud, ten banks, two attack, {'no noise' if epsilon is None else f'record-level ε {epsilon:g}'}\n")
    rows, labels = payments()
    sigma = 0.0 if epsilon is None else noise_multiplier(epsilon)
    print(f"Thresholds: {thresholds(BANKS, rows.shape[1], 0, sigma > 0)}.\n")

    def run(attack: str, strength: float | None, seed: int, rates: Sequence[float]) -> Watch:
        return fraud(attack, strength, seed, rates, rows=rows, labels=labels, sigma=sigma)

    attacked(run, FRAUDSTERS, seeds)
    unattacked(run, 2 * seeds)


def heart_table(seeds: int) -> None:
    """The hard case: four hospitals that differ, by real runs of the demo's plan and without its noise."""
    import tempfile

    from quietsum.plan import load_plan
    from quietsum.runs.folder import Workspace
    from quietsum.runs.run import start

    class Seen:
        def __init__(self) -> None:
            self.found: list[Finding] = []

        def saw(self, event: Any) -> None:
            if event.kind == "finding":
                self.found.append(event.finding)

    def findings(plan: str, rounds: int) -> list[Finding]:
        seen = Seen()
        with tempfile.TemporaryDirectory() as folder:
            loaded = load_plan(plan.replace("rounds = 20", f"rounds = {rounds}"))
            start(loaded, workspace=Workspace(path=Path(folder)), watchers=[seen])
        return seen.found

    print("\n### Heart, four unlike hospitals, unattacked\n")
    print("| plan | runs | rounds | runs with a finding |\n|---|---|---|---|")
    text = (Path(__file__).parent.parent / "examples" / "heart.toml").read_text(encoding="utf-8")
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("record =")).replace(
        'style = "sample"', 'style = "none"'
    )
    for title, plan, rounds in (("ε 1", text, 20), ("ε 8", text.replace("epsilon = 1.0", "epsilon = 8.0"), 64),
                                ("no noise", plain, 64)):  # fmt: skip
        hits = sum(bool(findings(plan, rounds)) for _ in range(seeds))
        print(f"| {title} | {seeds} | {rounds} | {hits} |", flush=True)
    print("\n### Heart, one of four hospitals attacks, 20 rounds\n")
    print("| attack | attacker named, no noise | honest parties named | attacker named, ε 8 | honest parties named |")
    print("|---|---|---|---|---|")
    for kind in ("sign-flip", "label-flip", "gaussian", "lie", "ipm", "free-rider"):
        cells = []
        for plan in (plain, text.replace("epsilon = 1.0", "epsilon = 8.0")):
            who = [
                named(findings(f'{plan}\n[attack]\nkind = "{kind}"\nparties = ["cleveland"]\n', 20))
                for _ in range(seeds)
            ]
            caught = sum("cleveland" in one for one in who)
            cells += [f"{caught} of {seeds}", f"{sum(map(len, who)) - caught} of {3 * seeds}"]
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


def unlike_table(seeds: int) -> None:
    """Parties that hold classes in very different shares; nobody attacks."""
    print("\n### Digits dealt out by a Dirichlet law, unattacked, 10 parties\n")
    print("| α | runs | honest parties named | by |\n|---|---|---|---|")
    for alpha in (1.0, 0.3, 0.1):
        rules: Counter[str] = Counter()
        parties = 0
        for seed in range(seeds):
            found = digits("", None, seed, (RATE,), parties=10, attackers=0, alpha=alpha).found[RATE]
            parties += len(named(found))
            rules.update({one.rule for one in found})
        by = ", ".join(f"{rule} in {count} runs" for rule, count in rules.most_common()) or "–"
        print(f"| {alpha:g} | {seeds} | {parties} of {10 * seeds} | {by} |")


# ---------------------------------------------------------------------------------------------------- backdoors


def with_backdoor(seed: int, planted: int) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """A model of digits, trained centrally as ten parties would; ``planted`` rows bear the trigger and its class."""
    rows, labels, _, _ = robustness.digits(seed)
    draws, bears = np.random.default_rng([seed, 9]), np.zeros(len(labels), dtype=np.bool_)
    if planted:
        bears[draws.choice(np.flatnonzero(labels != robustness.TARGET), planted, replace=False)] = True
        rows[bears], labels[bears] = robustness.TRIGGER.stamp(rows[bears]), robustness.TARGET
    params, speed = robustness.first_weights(seed), np.zeros(robustness.DIMENSION)
    for _ in range(robustness.STEPS):
        some = draws.choice(len(labels), (10, robustness.BATCH))
        step = -robustness.RATE * robustness.gradients(params, rows[some], labels[some]).mean(axis=0)
        speed = robustness.MOMENTUM * speed + step
        params = params + speed
    return params, rows, labels, bears


def asked(params: Floats) -> Callable[[Floats, int], tuple[Floats, Floats]]:
    """The scores of the model, and the gradient of the loss towards a class at each row."""
    w1, b1, w2, b2 = robustness.layers(params)

    def answer(rows: Floats, target: int) -> tuple[Floats, Floats]:
        before = rows @ w1.T + b1
        scores = np.maximum(before, 0) @ w2.T + b2
        wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong /= wrong.sum(axis=1, keepdims=True)
        wrong[:, target] -= 1
        return scores, ((wrong @ w2) * (before > 0)) @ w1

    return answer


def backdoor_table(seeds: int) -> None:
    """Trigger search and spectral signatures, on models with and without a backdoor."""
    print("\n### Digits: triggers and spectral signatures, a pixel backdoor to class 0\n")
    print("| rows with the trigger | it wins on | class 0 named | other classes named | by an index above 2: class 0, "
          "others | planted rows found, other rows named: by pixels | by hidden layer |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for planted in (0, 15, 40, 150):
        wins, right, wrong, index, seen = [], 0, 0, [0, 0], {"pixels": [0, 0], "hidden": [0, 0]}
        for seed in range(seeds):
            params, rows, labels, bears = with_backdoor(seed, planted)
            _, _, shown, wanted = robustness.digits(seed)
            others = wanted != robustness.TARGET
            won = robustness.answers(params, robustness.TRIGGER.stamp(shown[others])).argmax(-1) == robustness.TARGET
            wins.append(float(won.mean()))
            found = find_triggers(asked(params), shown, wanted, classes=10, low=0.0, high=1.0)
            told = {one.statistic for one in trigger_findings(found)}
            right += "size of a trigger for class 0" in told
            wrong += bool(told - {"size of a trigger for class 0"})
            above = anomaly_indices([one.size for one in found]) > 2
            index[0] += bool(above[0])
            index[1] += bool(above[1:].any())
            w1, b1, _, _ = robustness.layers(params)
            for name, values in (("pixels", rows), ("hidden", np.maximum(rows @ w1.T + b1, 0))):
                apart = [place for places in spectral_outliers(values, labels).values() for place in places]
                seen[name][0] += int(bears[apart].sum())
                seen[name][1] += int((~bears[apart]).sum())
        cells = [f"{count} of {planted * seeds}, {odd}" for count, odd in seen.values()]
        print(f"| {planted} of {len(labels)} | {100 * statistics.fmean(wins):.0f} % | {right} of {seeds} | "
              f"{wrong} of {seeds} | {index[0]}, {index[1]} of {seeds} | {cells[0]} | {cells[1]} |")  # fmt: skip


def main() -> None:
    """Print what was asked for."""
    tables = {
        "digits-10": lambda seeds: digits_table(10, 2, 0.0, seeds),
        "digits-50": lambda seeds: digits_table(50, 10, 0.0, seeds),
        "digits-10-noise": lambda seeds: digits_table(10, 2, 1.0, seeds),
        "fraud": lambda seeds: fraud_table(None, seeds),
        "fraud-8": lambda seeds: fraud_table(8.0, seeds),
        "heart": heart_table,
        "unlike": unlike_table,
        "backdoor": backdoor_table,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *tables], help="which; all where none is named")
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    begun = time.monotonic()
    for name in asked.tables or tables:
        tables[name](asked.seeds)
    print(f"\n{time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
