"""Opacus: the arguments of ``make_private`` and ``make_private_with_epsilon``, and what was printed at the end.

Read in Opacus 1.6.0: with ``poisson_sampling`` the loader is replaced by one that draws by coins at 1/len(loader);
without it the loader stays as it was, and the accountant supposes coins all the same. Adaptive clipping splits the
noise between gradients and count as if the bits were centred at ±1/2; they are 0 and 1, so the count costs more. Noise
comes from torch's generator unless ``secure_mode`` is set.
"""

from __future__ import annotations

import math

from quietsum.audit.claims.dp_sgd import ClaimedTraining, price_training, sampling_rate_of
from quietsum.audit.claims.registry import reads
from quietsum.audit.claims.steps import Draw, claim_line, count_steps, relation_of
from quietsum.audit.claims.values import NOISE, ClaimLine, Remark, Stated, assumption, mistake, note
from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, OPEN_FRACTION, POSITIVE, SHARE, choices, key, table
from quietsum.privacy import PrivacyUnit, PureDP, compute_noise_multiplier

__all__ = ["OpacusSettings", "calibrate_by_library"]


@table
class OpacusSettings:
    """The arguments of Opacus' PrivacyEngine, in its words."""

    noise_multiplier: float | None = key("As given to make_private.", default=None, bound=NOISE)
    target_epsilon: float | None = key("As given to make_private_with_epsilon.", default=None, bound=POSITIVE)
    target_delta: float | None = key("As given there.", default=None, bound=OPEN_FRACTION)
    max_grad_norm: float | None = key(
        "What each gradient is clipped to; ε does not hang on it.", default=None, bound=POSITIVE
    )
    sample_rate: float | None = key("1 / len(data_loader), where it is stated.", default=None, bound=SHARE)
    batch_size: int | None = key("The loader's batch size.", default=None, bound=COUNT)
    dataset_size: int | None = key("The number of records, len(dataset).", default=None, bound=COUNT)
    epochs: float | None = key("Epochs of the training.", default=None, bound=POSITIVE)
    steps: int | None = key("Or steps of the training.", default=None, bound=COUNT)
    rounds: int = key("How many rounds of so many steps, in a federation.", default=1, bound=COUNT)
    poisson_sampling: bool = key("As given to make_private.", default=True)
    shuffle: bool = key("Whether the loader shuffles, where it is kept (poisson_sampling = false).", default=True)
    clipping: str = key(
        "flat, per_layer, adaptive, ghost; or per-batch, if the loop clips batches instead.",
        default="flat",
        bound=choices("flat", "per_layer", "adaptive", "ghost", "per-batch"),
    )
    unclipped_num_std: float | None = key("Noise on the count, for adaptive clipping.", default=None, bound=NOISE)
    grad_sample_mode: str = key(
        "How gradients per record are computed; ε does not hang on it.",
        default="hooks",
        bound=choices("hooks", "ew", "functorch", "ghost", "ghost_fsdp", "no_op"),
    )
    accountant: str = key("Which accountant printed the ε.", default="prv", bound=choices("prv", "rdp", "gdp"))
    delta: float | None = key("As given to get_epsilon.", default=None, bound=OPEN_FRACTION)
    secure_mode: bool = key("As given to PrivacyEngine.", default=False)
    cohort_rate: float | None = key(
        "The share of sites in a round, if the ε was amplified by it.", default=None, bound=SHARE
    )


@reads("opacus", "Opacus' PrivacyEngine", OpacusSettings)
def read_opacus(settings: OpacusSettings, stated: Stated) -> list[ClaimLine]:
    """What the engine does with these arguments."""
    draw = Draw.POISSON if settings.poisson_sampling else Draw.SHUFFLED if settings.shuffle else Draw.IN_ORDER
    rate, batches = _rate(settings)
    remarks: list[Remark] = []
    if settings.accountant == "gdp":
        remarks.append(
            mistake(
                "gdp",
                "the accountant gdp goes by a central limit, which may show less than the settings cost",
                "use accountant = 'prv'",
            )
        )
    if not settings.secure_mode:
        remarks.append(
            note(
                "floating-point",
                "noise comes from torch's generator in floating point (secure_mode is off); the figures "
                "are those of ideal noise",
                "set secure_mode = True where an attacker may see many digits",
            )
        )
    delta = settings.delta if settings.delta is not None else settings.target_delta
    epsilon = settings.target_epsilon
    if settings.noise_multiplier is None:
        steps, _ = count_steps(steps=settings.steps, epochs=settings.epochs, rate=rate, batches=batches)
        return [
            calibrate_by_library(
                stated, epsilon, delta, rate=rate, steps=steps * settings.rounds, draw=draw, remarks=remarks
            )
        ]
    noise, adaptive = settings.noise_multiplier, settings.clipping == "adaptive"
    count = settings.unclipped_num_std
    if adaptive and count:
        if noise >= 2 * count:
            raise InvalidParameter(
                "unclipped_num_std", count, f"is not above noise_multiplier/2 = {noise / 2:g}", "raise it"
            )
        noise = (noise**-2 - (2 * count) ** -2) ** -0.5  # what Opacus gives the gradients
        remarks.append(
            assumption(
                "divisor",
                "the noisy count is divided by how many records were drawn, which is private",
                "divide by the expected batch size",
            )
        )
    training = ClaimedTraining(
        noise_multiplier=noise,
        draw=draw,
        rate=rate,
        steps=settings.steps,
        epochs=settings.epochs,
        batches=batches,
        clipping={"adaptive": "adaptive", "per-batch": "per-batch"}.get(settings.clipping, "per-record"),
        batch=None if rate is None or settings.dataset_size is None else rate * settings.dataset_size,
        divided=True,
        count_stddev=count,
        rounds=settings.rounds,
        cohort_rate=settings.cohort_rate,
        remarks=tuple(remarks),
    )
    return price_training(training, stated, delta=delta, epsilon=epsilon)


def _rate(settings: OpacusSettings) -> tuple[float, int]:
    """(rate, batches an epoch) as Opacus computes them: 1 / len(loader)."""
    if settings.sample_rate is None and settings.batch_size is not None and settings.dataset_size is not None:
        sampling_rate_of(
            None, settings.batch_size, settings.dataset_size, Draw.POISSON
        )  # refuses a batch beyond the data
        batches = math.ceil(settings.dataset_size / settings.batch_size)
        return 1 / batches, batches
    rate = sampling_rate_of(settings.sample_rate, settings.batch_size, settings.dataset_size, Draw.POISSON)
    assert rate is not None
    return rate, max(1, math.ceil(1 / rate - 1e-9))


def calibrate_by_library(
    stated: Stated,
    epsilon: float | None,
    delta: float | None,
    *,
    rate: float,
    steps: int,
    draw: Draw,
    remarks: list[Remark],
) -> ClaimLine:
    """A claim whose noise the library chose: what it had to be is known, what it was is not stated."""
    target = stated.epsilon if stated.epsilon is not None else epsilon
    at = stated.delta if stated.delta is not None else delta
    needed = ""
    if target and at and draw is Draw.POISSON:
        sigma = compute_noise_multiplier(
            target_epsilon=target, target_delta=at, sample_rate=rate, steps_per_round=steps, num_rounds=1
        )
        needed = f"; σ ≥ {sigma:.4g} is needed with Poisson batches"
    text = f"the noise multiplier that the library chose is not stated, so the ε is not checked{needed}"
    return claim_line(
        stated,
        None,
        least=PureDP(epsilon=0.0),
        protects=PrivacyUnit.RECORD,
        neighbours=relation_of(draw, stated),
        delta=delta,
        epsilon=epsilon,
        remarks=[*remarks, assumption("noise-multiplier", text, "print optimizer.noise_multiplier")],
    )
