"""Systems that quietsum unites: a DP-FedMed checkpoint, the fraud system's report and configuration, PRISM's.

Each is read as favourably as its own text allows. Where a report says "DP-SGD (Gaussian)" and no more, records are
taken to be clipped one by one and drawn by coins; if the stated ε is too small even so, it is too small.
"""

from __future__ import annotations

from typing import Any

from quietsum.audit.claims.dp_sgd import ClaimedTraining, price_training, sampling_rate_of
from quietsum.audit.claims.opacus import calibrate_by_library
from quietsum.audit.claims.registry import reads
from quietsum.audit.claims.steps import Draw, claim_line, count_steps, gaussian_step
from quietsum.audit.claims.values import NOISE, ClaimLine, Remark, Stated, assumption, mistake
from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, NON_NEGATIVE, OPEN_FRACTION, POSITIVE, SHARE, choices, key, table
from quietsum.privacy import (
    Composed,
    FixedSizeSampled,
    Neighbours,
    PoissonSampled,
    PrivacyEvent,
    PrivacyUnit,
    PureDP,
    Repeated,
)

__all__ = ["FedMedSettings", "FraudConfig", "FraudReport", "PrismSettings", "triples"]

# ----------------------------------------------------------------------------------------------- DP-FedMed


@table
class FedMedRound:
    """(σ, q, steps) of one round."""

    noise_multiplier: float = key("Noise over the clip norm.", bound=NOISE)
    sample_rate: float = key("The share that is drawn.", bound=SHARE)
    steps: int = key("Noisy steps in it.", bound=COUNT)


@table
class FedMedSettings:
    """The privacy block of a DP-FedMed checkpoint."""

    target_delta: float = key("The δ of all its figures.", bound=OPEN_FRACTION)
    sample_history: tuple[FedMedRound, ...] = key("(σ, q, steps) a round, for records.", default=())
    user_history: tuple[FedMedRound, ...] = key("(σ, k/n, steps) a round, for clients.", default=())
    cumulative_sample_epsilon: float | None = key("The ε that it states per record.", default=None, bound=NON_NEGATIVE)
    cumulative_user_epsilon: float | None = key("The ε that it states per client.", default=None, bound=NON_NEGATIVE)
    cumulative_epsilon: float | None = key("Their sum, for style hybrid.", default=None, bound=NON_NEGATIVE)


def triples(values: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's block with its histories of (σ, q, steps) as tables with names."""
    found = dict(values)
    for level in ("sample_history", "user_history"):
        entries = found.get(level)
        if entries is None:
            found.pop(level, None)
            continue
        if not isinstance(entries, list):
            raise InvalidParameter(level, type(entries).__name__, "is no list", "write [[σ, q, steps], …]")
        for number, entry in enumerate(entries, start=1):
            if not isinstance(entry, dict | list) or (isinstance(entry, list) and len(entry) != 3):
                raise InvalidParameter(
                    f"{level} entry {number}", str(entry)[:60], "is not (σ, q, steps)", "write three numbers"
                )
        names = ("noise_multiplier", "sample_rate", "steps")
        found[level] = [entry if isinstance(entry, dict) else dict(zip(names, entry, strict=True)) for entry in entries]
    return found


@reads("dp-fedmed", "a DP-FedMed checkpoint", FedMedSettings)
def read_fedmed(settings: FedMedSettings, stated: Stated) -> list[ClaimLine]:
    """A line per record, a line per client, and the sum of both where it is stated."""
    lines = []
    if settings.sample_history:
        event = _compose_rounds(
            [
                (
                    one,
                    None
                    if (step := gaussian_step(one.noise_multiplier)) is None
                    else PoissonSampled(rate=one.sample_rate, event=step),
                )
                for one in settings.sample_history
            ]
        )
        lines.append(
            claim_line(
                stated,
                event,
                protects=PrivacyUnit.RECORD,
                neighbours=stated.neighbours or Neighbours.ADD_REMOVE,
                delta=settings.target_delta,
                epsilon=settings.cumulative_sample_epsilon,
                label="records",
                remarks=[] if event is None else [_LEADING_TERM],
            )
        )
    if settings.user_history:
        event = _compose_rounds(
            [
                (
                    one,
                    None
                    if (step := gaussian_step(one.noise_multiplier)) is None
                    else FixedSizeSampled(rate=one.sample_rate, event=step),
                )
                for one in settings.user_history
            ]
        )
        lines.append(
            claim_line(
                stated,
                event,
                protects=PrivacyUnit.CLIENT,
                neighbours=stated.neighbours or Neighbours.ZERO_OUT,
                delta=settings.target_delta,
                epsilon=settings.cumulative_user_epsilon,
                label="clients",
                remarks=[] if event is None else [_LEADING_TERM],
            )
        )
    if settings.cumulative_epsilon is not None:
        summed = mistake(
            "summed-units",
            "an ε per record and an ε per client were added: they are about different neighbours, and "
            "their sum is no guarantee about anything",
            "state both, each with its unit",
            always=True,
        )
        lines.append(
            claim_line(
                stated,
                None,
                least=PureDP(epsilon=0.0),
                protects=PrivacyUnit.RECORD,
                neighbours=Neighbours.ADD_REMOVE,
                delta=settings.target_delta,
                epsilon=settings.cumulative_epsilon,
                label="records + clients",
                remarks=[summed],
            )
        )
    if not lines:
        raise InvalidParameter("sample_history", [], "is empty, and so is user_history", "nothing was recorded")
    return lines


_LEADING_TERM = mistake(
    "formula",
    "αq²/(2σ²) is the leading term of the sampled Gaussian's Rényi divergence for large σ, not a bound on it",
    "use the moments of the mixture (Mironov, Talwar, Zhang 2019), or an exact accountant",
)


def _compose_rounds(rounds: list[tuple[FedMedRound, PrivacyEvent | None]]) -> PrivacyEvent | None:
    """All rounds; None if any adds no noise."""
    events = [None if event is None else Repeated(times=one.steps, event=event) for one, event in rounds]
    kept = tuple(event for event in events if event is not None)
    return Composed(events=kept) if len(kept) == len(events) else None


# -------------------------------------------------------------------------------------------- fraud detection


@table
class FraudReport:
    """The nine names of the fraud system's report."""

    target_epsilon: float | None = key("The ε that was aimed at.", default=None, bound=POSITIVE)
    target_delta: float = key("Its δ, as stated.", bound=OPEN_FRACTION)
    achieved_epsilon: float = key("The ε that is reported.", bound=NON_NEGATIVE)
    noise_multiplier: float = key("Noise over the clip norm.", bound=NOISE)
    max_grad_norm: float | None = key("The clip norm; ε does not hang on it.", default=None, bound=POSITIVE)
    sampling_probability: float = key("batch_size / dataset_size.", bound=SHARE)
    training_steps: int = key("Noisy steps in it.", bound=COUNT)
    mechanism: str = key("What it calls its mechanism.", default="DP-SGD (Gaussian)")
    accounting: str = key("What it calls its accounting.", default="RDP")


@reads("fraud-report", "the fraud system's report of nine names", FraudReport)
def read_fraud_report(settings: FraudReport, stated: Stated) -> list[ClaimLine]:
    """The reported ε against the reported settings."""
    training = ClaimedTraining(
        noise_multiplier=settings.noise_multiplier, rate=settings.sampling_probability, steps=settings.training_steps
    )
    return price_training(training, stated, delta=settings.target_delta, epsilon=settings.achieved_epsilon)


@table
class FraudConfig:
    """The fraud system's block ``privacy``, and what its text states beside it."""

    dp_enabled: bool = key("Whether noise is added at all.", default=True)
    epsilon: float = key("The ε that is aimed at.", bound=POSITIVE)
    delta: float = key("Its δ, as stated.", bound=OPEN_FRACTION)
    noise_multiplier: float = key("Noise over the clip norm.", bound=NOISE)
    max_grad_norm: float | None = key("The clip norm; ε does not hang on it.", default=None, bound=POSITIVE)
    secure_agg_enabled: bool = key(
        "Whether updates are masked; that hides them from the server and changes no ε.", default=False
    )
    n_samples: int | None = key("How many records there are.", default=None, bound=COUNT)
    batch_size: int | None = key("Records in a batch.", default=None, bound=COUNT)
    rounds: int | None = key("Rounds, of one epoch each.", default=None, bound=COUNT)
    clipping: str = key(
        "What is clipped: per-record, or per-batch as its algorithm is written.",
        default="per-record",
        bound=choices("per-record", "per-batch"),
    )


@reads("fraud-config", "the fraud system's privacy configuration", FraudConfig)
def read_fraud_config(settings: FraudConfig, stated: Stated) -> list[ClaimLine]:
    """The configured ε against the configured noise, if the rate and the number of steps are stated, too."""
    if not settings.dp_enabled:
        return [
            claim_line(
                stated,
                None,
                protects=PrivacyUnit.RECORD,
                neighbours=Neighbours.ADD_REMOVE,
                delta=settings.delta,
                epsilon=settings.epsilon,
            )
        ]
    if settings.n_samples is None or settings.batch_size is None or settings.rounds is None:
        remark = assumption(
            "length",
            "an ε hangs on the noise, the rate and the number of steps; this file states the noise alone",
            "state n_samples, batch_size and rounds as well",
        )
        return [
            claim_line(
                stated,
                None,
                least=gaussian_step(settings.noise_multiplier) and PureDP(epsilon=0.0),
                protects=PrivacyUnit.RECORD,
                neighbours=Neighbours.ADD_REMOVE,
                delta=settings.delta,
                epsilon=settings.epsilon,
                remarks=[remark],
            )
        ]
    rate = sampling_rate_of(None, settings.batch_size, settings.n_samples, Draw.POISSON)
    training = ClaimedTraining(
        noise_multiplier=settings.noise_multiplier,
        rate=rate,
        clipping=settings.clipping,
        steps=settings.rounds * (settings.n_samples // settings.batch_size),
    )
    return price_training(training, stated, delta=settings.delta, epsilon=settings.epsilon)


# --------------------------------------------------------------------------------------------------- PRISM


@table
class PrismSettings:
    """The arguments of PRISM's create_privacy_config, and the size of its data."""

    epsilon: float = key("The ε that is aimed at.", bound=POSITIVE)
    delta: float = key("Its δ, as stated.", default=1e-5, bound=OPEN_FRACTION)
    max_grad_norm: float | None = key("The clip norm; ε does not hang on it.", default=None, bound=POSITIVE)
    noise_multiplier: float | None = key(
        "Noise over the clip norm; if omitted, chosen by the library.", default=None, bound=NOISE
    )
    epochs: float = key("Epochs of the training.", default=50.0, bound=POSITIVE)
    batch_size: int = key("Records in a batch.", default=32, bound=COUNT)
    learning_rate: float | None = key("The step size; ε does not hang on it.", default=None, bound=POSITIVE)
    use_opacus: bool = key("Whether Opacus clips; else the loop clips whole batches.", default=True)
    noise_type: str = key("gaussian or laplace.", default="gaussian", bound=choices("gaussian", "laplace"))
    privacy_accounting: str = key("rdp or moments.", default="rdp", bound=choices("rdp", "moments"))
    records: int = key("How many records there are.", bound=COUNT)
    dimension: int | None = key("How many parameters there are; for Laplace noise.", default=None, bound=COUNT)


@reads("prism", "PRISM's create_privacy_config", PrismSettings)
def read_prism(settings: PrismSettings, stated: Stated) -> list[ClaimLine]:
    """What its trainer does with these arguments."""
    rate = sampling_rate_of(None, settings.batch_size, settings.records, Draw.POISSON)
    assert rate is not None
    if settings.noise_multiplier is None:
        steps, _ = count_steps(steps=None, epochs=settings.epochs, rate=rate)
        return [
            calibrate_by_library(
                stated, settings.epsilon, settings.delta, rate=rate, steps=steps, draw=Draw.POISSON, remarks=[]
            )
        ]
    laplace = settings.noise_type == "laplace"
    if laplace and settings.dimension is None:
        raise InvalidParameter("dimension", None, "is missing", "Laplace noise is measured in L1: state the parameters")
    remarks: list[Remark] = []
    training = ClaimedTraining(
        noise_multiplier=settings.noise_multiplier,
        rate=rate,
        epochs=settings.epochs,
        draw=Draw.POISSON if settings.use_opacus else Draw.SHUFFLED,
        clipping="per-record" if settings.use_opacus else "per-batch",
        laplace_dimension=settings.dimension if laplace else None,
        remarks=tuple(remarks),
    )
    return price_training(training, stated, delta=settings.delta, epsilon=settings.epsilon)
