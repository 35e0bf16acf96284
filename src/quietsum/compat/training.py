"""Training by its older words: configurations with a learning rate in them, three trainers, and Opacus' engine.

    config = create_privacy_config(epsilon=1.0, delta=1e-5, epochs=50, batch_size=32, learning_rate=0.001)
    trainer = PrivacyPreservingTrainer(model, config)
    results = trainer.train(train_loader=train_loader, val_loader=val_loader, num_epochs=50, learning_rate=0.001)
    analysis = analyze_privacy_utility_tradeoff(results)

Behind each name is :class:`~quietsum.learning.PrivateTrainer` or :func:`~quietsum.learning.make_private`: one clip for
each record, Poisson batches, noise of the operating system, a plan that is priced before its first step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, final

from torch import nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning import (
    PoissonLoader,
    PrivacyConfig,
    PrivateOptimizer,
    PrivateTrainer,
    TrainingHistory,
    make_private as make_private_loop,
)
from quietsum.privacy import Guarantee
from quietsum.tradeoff import Outcome, Tradeoff, analyze_privacy_utility_tradeoff as analyze_outcomes
from quietsum.validate import positive

__all__ = [
    "ManualDPTrainer",
    "OpacusDPTrainer",
    "PrivacyEngine",
    "PrivacyPreservingTrainer",
    "TrainingConfig",
    "analyze_privacy_utility_tradeoff",
    "create_privacy_config",
    "make_private",
]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A :class:`~quietsum.learning.PrivacyConfig` with the learning rate that the older configuration held as well."""

    privacy: PrivacyConfig
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)


def create_privacy_config(
    *, learning_rate: float | None = None, use_opacus: bool | None = None, **settings: Any
) -> TrainingConfig:
    """A configuration of ``settings`` (those of PrivacyConfig) and the two older words.

    ``use_opacus=True`` is ``engine="opacus"``, which is refused if Opacus is not installed, and False is
    ``engine="auto"``. There is no silent change from one to the other.

    >>> config = create_privacy_config(epsilon=1.0, delta=1e-5, epochs=50, batch_size=32, learning_rate=0.001)
    >>> config.privacy.engine, config.learning_rate
    ('auto', 0.001)
    """
    if use_opacus is not None:
        engine = "opacus" if use_opacus else "auto"
        if settings.setdefault("engine", engine) != engine:
            problem = f"contradicts engine = {settings['engine']!r}"
            raise InvalidParameter("use_opacus", use_opacus, problem, "state the engine alone")
    known = {field.name for field in dataclasses.fields(PrivacyConfig)}
    for name in settings:
        if name not in known:
            raise InvalidParameter(name, settings[name], "is no setting of training", _remedy(name, known))
    return TrainingConfig(privacy=PrivacyConfig(**settings), learning_rate=learning_rate)


_ELSEWHERE = {
    "target_epsilon": "epsilon", "target_delta": "delta", "max_norm": "max_grad_norm", "num_epochs": "epochs",
    "sample_rate": "batch_size, from which the rate follows", "sampling_probability": "batch_size, from which the rate "
    "follows", "dp_enabled": "noise_multiplier or epsilon; training without privacy is torch's own", "lr":
    "learning_rate",
}  # fmt: skip


def _remedy(name: str, known: Iterable[str]) -> str:
    import difflib

    if name in _ELSEWHERE:
        return f"it is {_ELSEWHERE[name]}"
    near = difflib.get_close_matches(name, [*known, "learning_rate", "use_opacus"], 1)
    return f"did you mean {near[0]}?" if near else "see PrivacyConfig for what there is"


class PrivacyPreservingTrainer:
    """The older system's trainer: a :class:`~quietsum.learning.PrivateTrainer`, which is its ``trainer``.

    ``config`` is of :func:`create_privacy_config`, or a PrivacyConfig. Guarantees: those of PrivateTrainer.
    """

    engine: str | None = None
    """The engine of this class; None: that of the configuration."""

    def __init__(self, model: nn.Module, config: TrainingConfig | PrivacyConfig, **options: Any) -> None:
        given = config if isinstance(config, TrainingConfig) else TrainingConfig(privacy=config)
        chosen = given.privacy if self.engine is None else dataclasses.replace(given.privacy, engine=self.engine)
        self.config = dataclasses.replace(given, privacy=chosen)
        self.trainer = PrivateTrainer(model, chosen, **options)

    def train(
        self,
        train_loader: Any,
        val_loader: Iterable[Any] | None = None,
        num_epochs: int | None = None,
        learning_rate: float | None = None,
        **options: Any,
    ) -> TrainingHistory:
        """Run the plan; the configuration's learning rate is taken if none is given here."""
        rate = self.config.learning_rate if learning_rate is None else learning_rate
        if rate is not None:
            options["learning_rate"] = rate
        return self.trainer.train(train_loader, val_loader, num_epochs=num_epochs, **options)

    def get_privacy_spent(self) -> tuple[float, float]:
        """(ε, δ) per record charged so far."""
        return self.trainer.get_privacy_spent()

    def guarantee(self) -> Guarantee:
        """What may be said about the model."""
        return self.trainer.guarantee()


@final
class OpacusDPTrainer(PrivacyPreservingTrainer):
    """Per-record gradients by Opacus: refused if it is not installed."""

    engine = "opacus"


@final
class ManualDPTrainer(PrivacyPreservingTrainer):
    """Per-record gradients by quietsum, which needs torch alone."""

    engine = "auto"


def analyze_privacy_utility_tradeoff(
    results: TrainingHistory | Iterable[Outcome], *, plain: float | None = None
) -> Mapping[str, float] | Tradeoff:
    """What one training reached and cost; several runs are compared as :mod:`quietsum.tradeoff` does it.

    Of a history: ``final_accuracy`` (the first score of its last epoch), ``final_epsilon`` (that of the whole plan) and
    ``privacy_efficiency``: the share of ``plain``, the score of a training without privacy, that is kept. If ``plain``
    is omitted it is accuracy for each unit of ε, as the older system has it, which compares trainings of one ε only.
    """
    if not isinstance(results, TrainingHistory):
        return analyze_outcomes(results)
    if not results.metrics:
        problem = "has no score, since it was trained without a val_loader"
        raise InvalidParameter("results", results.stopped, problem, "pass train(…, val_loader=…) unprotected records")
    scores = dict(results.metrics)
    accuracy, epsilon = scores.get("accuracy", next(iter(scores.values()))), results.guarantee.epsilon
    if plain is not None:
        positive("plain", plain)
    return {
        "final_accuracy": accuracy, "final_epsilon": epsilon,
        "privacy_efficiency": accuracy / (epsilon if plain is None else plain),
    }  # fmt: skip


def make_private(
    model: nn.Module | None = None,
    optimizer: Any = None,
    data: Any = None,
    *,
    config: PrivacyConfig | TrainingConfig | None = None,
    module: nn.Module | None = None,
    data_loader: Any = None,
    **settings: Any,
) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
    """:func:`quietsum.learning.make_private`, which also takes Opacus' keywords in place of ``config``.

    These are ``module``, ``data_loader``, ``noise_multiplier``, ``max_grad_norm`` and, since the whole plan is priced
    before its first step, ``epochs``. ``get_epsilon(delta)`` is on the optimizer that is returned.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> layer = nn.Linear(2, 2)
    >>> model, optimizer, loader = make_private(
    ...     module=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.5),
    ...     data_loader=DataLoader(TensorDataset(torch.randn(40, 2), torch.arange(40) % 2), batch_size=8),
    ...     noise_multiplier=2.0, max_grad_norm=1.0, epochs=2,
    ... )
    >>> for batch in loader:
    ...     optimizer.step()
    >>> optimizer.get_epsilon(delta=1e-5) < optimizer.get_epsilon(delta=1e-7)
    True
    """
    model = _one_of("model", model, "module", module)
    data = _one_of("data", data, "data_loader", data_loader)
    if config is not None:
        plain = config.privacy if isinstance(config, TrainingConfig) else config
        for name in ("noise_multiplier", "max_grad_norm", "epochs", "batch_size"):
            if name in settings:
                problem = "stands beside config, which has one"
                raise InvalidParameter(name, settings[name], problem, "state it in config alone")
        return make_private_loop(model, optimizer, data, config=plain, **settings)
    lacking = [name for name in ("noise_multiplier", "max_grad_norm", "epochs") if settings.get(name) is None]
    if lacking:
        remedy = f"pass config=PrivacyConfig(…), or instead {', '.join(lacking)}"
        raise InvalidParameter("config", None, "is missing", remedy)
    return PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=data, **settings)


def _one_of(name: str, value: Any, older: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise InvalidParameter(older, "…", f"stands beside {name}", f"give {name} alone")
    found = value if other is None else other
    if found is None:
        raise InvalidParameter(name, None, "is missing", f"pass {name} or {older}")
    return found


@final
class PrivacyEngine:
    """Opacus' entry point, with Opacus' words: what it makes is that of :func:`~quietsum.learning.make_private`.

    A loop written for Opacus runs when ``loss.backward()`` is left out: ``optimizer.step()`` computes the gradient.
    ``epochs`` must be said, because the whole plan is priced before its first step.
    """

    def __init__(self, *, accountant: str = "exact") -> None:
        self._accounting = {"prv": "exact", "gdp": "exact"}.get(accountant, accountant)
        self._optimizer: PrivateOptimizer | None = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Any,
        data_loader: Any,
        noise_multiplier: float,
        max_grad_norm: float,
        epochs: int | None = None,
        **options: Any,
    ) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
        """Model, optimizer and loader of a plan with this noise."""
        return self._make(module, optimizer, data_loader, epochs, options, max_grad_norm=max_grad_norm,
                          noise_multiplier=noise_multiplier)  # fmt: skip

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Any,
        data_loader: Any,
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        **options: Any,
    ) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
        """Model, optimizer and loader of a plan that costs no more than ``target_epsilon``."""
        return self._make(module, optimizer, data_loader, epochs, options, max_grad_norm=max_grad_norm,
                          epsilon=target_epsilon, delta=target_delta)  # fmt: skip

    def _make(
        self, model: nn.Module, optimizer: Any, data: Any, epochs: int | None, options: dict[str, Any], **settings: Any
    ) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
        if epochs is None:
            remedy = "pass epochs=, however many the loop makes: the plan is priced before its first step"
            raise InvalidParameter("epochs", None, "is missing", remedy)
        if options.pop("poisson_sampling", True) is not True:
            problem = "would be another sampling than the one that is priced"
            raise InvalidParameter("poisson_sampling", False, problem, "leave it out")
        size = options.pop("batch_size", None) or getattr(data, "batch_size", None)
        if size is None:
            raise InvalidParameter("batch_size", None, "is unknown", "pass a DataLoader that has one, or batch_size=")
        config = PrivacyConfig(epochs=epochs, batch_size=size, privacy_accounting=self._accounting, **settings)
        model, private, loader = make_private_loop(model, optimizer, data, config=config, **options)
        self._optimizer = private
        return model, private, loader

    def get_epsilon(self, delta: float | None = None) -> float:
        """ε per record so far, at ``delta``; at the plan's own δ if omitted."""
        if self._optimizer is None:
            raise QuietsumError("nothing is private yet, so nothing was spent; call make_private() first")
        return self._optimizer.get_epsilon(delta)
