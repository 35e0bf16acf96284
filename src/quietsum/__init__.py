"""quietsum: train one model across sites that never share their data, and prove what it cost in privacy.

What touches data is described by *events*; an *accountant* turns events into a *guarantee*.

>>> from quietsum import Gaussian, PoissonSampled, RenyiAccountant
>>> step = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
>>> guarantee = RenyiAccountant().compose(step, times=10_000).epsilon(delta=1e-5)
>>> guarantee.unit, guarantee.epsilon > 6.18
(<PrivacyUnit.RECORD: 'record'>, True)

Importing the package costs next to nothing: each public name brings in its own module when it is first asked for
(PEP 562), and none of them needs more than numpy and scipy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  # in plain order: ruff takes L1 and L2 for constants
    "Accountant",
    "ApproximateDP",
    "BayesianDiagnostic",
    "Budget",
    "BudgetExhausted",
    "ClassicalAccountant",
    "ClippedSum",
    "Composed",
    "ConcentratedAccountant",
    "CorruptState",
    "DataMissing",
    "DataUnfit",
    "DiscreteGaussian",
    "DiscreteGaussianMechanism",
    "DiscreteGaussianSum",
    "DiscreteLaplace",
    "DiscreteLaplaceMechanism",
    "Everyone",
    "ExactAccountant",
    "ExponentialMechanism",
    "FixedSize",
    "FixedSizeSampled",
    "Gaussian",
    "GaussianMechanism",
    "GaussianPrior",
    "Group",
    "Guarantee",
    "InvalidParameter",
    "L1",
    "L2",
    "LInf",
    "Laplace",
    "LaplaceMechanism",
    "Ledger",
    "LedgerBroken",
    "MixedUnits",
    "Neighbours",
    "ObservedNorms",
    "Observer",
    "OneInOneOut",
    "Outcome",
    "PermuteAndFlip",
    "Plan",
    "PlanRefused",
    "PldAccountant",
    "Poisson",
    "PoissonSampled",
    "PrivacyAccountant",
    "PrivacyUnit",
    "PureDP",
    "QuietsumError",
    "RandomizedResponse",
    "RenyiAccountant",
    "RenyiFilter",
    "RenyiOdometer",
    "Repeated",
    "ReportNoisyMax",
    "Shuffled",
    "ShuffledReports",
    "Skellam",
    "SkellamMechanism",
    "TooFewParties",
    "UnsupportedEvent",
    "Zcdp",
    "__version__",
    "analyze_privacy_utility_tradeoff",
    "attacker_advantage",
    "bayesian_loss",
    "calibrate_noise",
    "calibrate_rate",
    "calibrate_rounds",
    "calibrate_steps",
    "compute_noise_multiplier",
    "gaussian_rdp",
    "get_privacy_spent",
    "group_guarantee",
    "largest_local_epsilon",
    "load_plan",
    "posterior_odds",
    "search_cost",
    "shuffled_epsilon",
    "tradeoff_curve",
    "true_positive_rate",
]

if TYPE_CHECKING:  # what type checkers and editors read; at run time the table below does the same, late
    from quietsum.errors import (
        BudgetExhausted,
        CorruptState,
        DataMissing,
        DataUnfit,
        InvalidParameter,
        LedgerBroken,
        MixedUnits,
        PlanRefused,
        QuietsumError,
        TooFewParties,
        UnsupportedEvent,
    )
    from quietsum.ledger import Ledger
    from quietsum.mechanisms.bayesian import BayesianDiagnostic, GaussianPrior, ObservedNorms, bayesian_loss
    from quietsum.mechanisms.central import (
        L1,
        L2,
        DiscreteGaussianMechanism,
        DiscreteLaplaceMechanism,
        ExponentialMechanism,
        GaussianMechanism,
        LaplaceMechanism,
        LInf,
        PermuteAndFlip,
        ReportNoisyMax,
        SkellamMechanism,
    )
    from quietsum.mechanisms.gaussian import ClippedSum
    from quietsum.mechanisms.shuffle_model import ShuffledReports, largest_local_epsilon, shuffled_epsilon
    from quietsum.plan import Plan, load_plan
    from quietsum.privacy.attacker import attacker_advantage, posterior_odds, tradeoff_curve, true_positive_rate
    from quietsum.privacy.calibrate import (
        calibrate_noise,
        calibrate_rate,
        calibrate_rounds,
        calibrate_steps,
        compute_noise_multiplier,
    )
    from quietsum.privacy.classical import ClassicalAccountant
    from quietsum.privacy.concentrated import ConcentratedAccountant
    from quietsum.privacy.events import (
        ApproximateDP,
        Composed,
        DiscreteGaussian,
        DiscreteGaussianSum,
        DiscreteLaplace,
        FixedSizeSampled,
        Gaussian,
        Group,
        Laplace,
        OneInOneOut,
        PoissonSampled,
        PureDP,
        RandomizedResponse,
        Repeated,
        Shuffled,
        Skellam,
        Zcdp,
    )
    from quietsum.privacy.exact.accountant import ExactAccountant
    from quietsum.privacy.groups import group_guarantee
    from quietsum.privacy.guarantee import Budget, Guarantee
    from quietsum.privacy.pld.accountant import PldAccountant
    from quietsum.privacy.protocol import Accountant
    from quietsum.privacy.renyi.accountant import RenyiAccountant, gaussian_rdp
    from quietsum.privacy.renyi.filters import RenyiFilter, RenyiOdometer
    from quietsum.privacy.rounds import PrivacyAccountant, get_privacy_spent
    from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
    from quietsum.sampling import Everyone, FixedSize, Poisson
    from quietsum.tradeoff.analysis import analyze_privacy_utility_tradeoff
    from quietsum.tradeoff.outcomes import Outcome
    from quietsum.tradeoff.searching import search_cost
else:
    _NAMES_BY_MODULE = {
        "errors": (
            "BudgetExhausted CorruptState DataMissing DataUnfit InvalidParameter LedgerBroken MixedUnits PlanRefused "
            "QuietsumError TooFewParties UnsupportedEvent"
        ),
        "ledger": "Ledger",
        "mechanisms.bayesian": "BayesianDiagnostic GaussianPrior ObservedNorms bayesian_loss",
        "mechanisms.central": (
            "DiscreteGaussianMechanism DiscreteLaplaceMechanism ExponentialMechanism GaussianMechanism L1 L2 LInf "
            "LaplaceMechanism PermuteAndFlip ReportNoisyMax SkellamMechanism"
        ),
        "mechanisms.gaussian": "ClippedSum",
        "mechanisms.shuffle_model": "ShuffledReports largest_local_epsilon shuffled_epsilon",
        "plan": "Plan load_plan",
        "privacy.rounds": "PrivacyAccountant get_privacy_spent",
        "privacy.calibrate": (
            "calibrate_noise calibrate_rate calibrate_rounds calibrate_steps compute_noise_multiplier"
        ),
        "privacy.classical": "ClassicalAccountant",
        "privacy.concentrated": "ConcentratedAccountant",
        "privacy.events": (
            "ApproximateDP Composed DiscreteGaussian DiscreteGaussianSum DiscreteLaplace FixedSizeSampled Gaussian "
            "Group Laplace OneInOneOut PoissonSampled PureDP RandomizedResponse Repeated Shuffled Skellam Zcdp"
        ),
        "privacy.exact.accountant": "ExactAccountant",
        "privacy.renyi.filters": "RenyiFilter RenyiOdometer",
        "privacy.groups": "group_guarantee",
        "privacy.guarantee": "Budget Guarantee",
        "privacy.pld.accountant": "PldAccountant",
        "privacy.protocol": "Accountant",
        "privacy.renyi.accountant": "RenyiAccountant gaussian_rdp",
        "privacy.attacker": "attacker_advantage posterior_odds tradeoff_curve true_positive_rate",
        "privacy.units": "Neighbours Observer PrivacyUnit",
        "sampling": "Everyone FixedSize Poisson",
        "tradeoff.analysis": "analyze_privacy_utility_tradeoff",
        "tradeoff.outcomes": "Outcome",
        "tradeoff.searching": "search_cost",
    }
    _HOME = {name: f"quietsum.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """A public name, from the module where it lives; imported once, then an ordinary attribute."""
        if name not in _HOME:
            raise AttributeError(f"module 'quietsum' has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names, loaded or not."""
        return sorted({*globals(), *__all__})
