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

from quietsum.doors import open_door

__version__ = "0.1.0"

if TYPE_CHECKING:
    from quietsum.errors import (
        BudgetExhausted as BudgetExhausted,
        CorruptState as CorruptState,
        DataMissing as DataMissing,
        DataUnfit as DataUnfit,
        InvalidParameter as InvalidParameter,
        LedgerBroken as LedgerBroken,
        MixedUnits as MixedUnits,
        PlanRefused as PlanRefused,
        QuietsumError as QuietsumError,
        TooFewParties as TooFewParties,
        UnsupportedEvent as UnsupportedEvent,
    )
    from quietsum.ledger import Ledger as Ledger
    from quietsum.mechanisms import (
        L1 as L1,
        L2 as L2,
        BayesianDiagnostic as BayesianDiagnostic,
        ClippedSum as ClippedSum,
        DiscreteGaussianMechanism as DiscreteGaussianMechanism,
        DiscreteLaplaceMechanism as DiscreteLaplaceMechanism,
        ExponentialMechanism as ExponentialMechanism,
        GaussianMechanism as GaussianMechanism,
        GaussianPrior as GaussianPrior,
        LaplaceMechanism as LaplaceMechanism,
        LInf as LInf,
        ObservedNorms as ObservedNorms,
        PermuteAndFlip as PermuteAndFlip,
        ReportNoisyMax as ReportNoisyMax,
        ShuffledReports as ShuffledReports,
        SkellamMechanism as SkellamMechanism,
        bayesian_loss as bayesian_loss,
        largest_local_epsilon as largest_local_epsilon,
        shuffled_epsilon as shuffled_epsilon,
    )
    from quietsum.plan import Plan as Plan, load_plan as load_plan
    from quietsum.privacy import (
        Accountant as Accountant,
        ApproximateDP as ApproximateDP,
        Budget as Budget,
        ClassicalAccountant as ClassicalAccountant,
        Composed as Composed,
        ConcentratedAccountant as ConcentratedAccountant,
        DiscreteGaussian as DiscreteGaussian,
        DiscreteGaussianSum as DiscreteGaussianSum,
        DiscreteLaplace as DiscreteLaplace,
        ExactAccountant as ExactAccountant,
        FixedSizeSampled as FixedSizeSampled,
        Gaussian as Gaussian,
        Group as Group,
        Guarantee as Guarantee,
        Laplace as Laplace,
        Neighbours as Neighbours,
        Observer as Observer,
        OneInOneOut as OneInOneOut,
        PldAccountant as PldAccountant,
        PoissonSampled as PoissonSampled,
        PrivacyAccountant as PrivacyAccountant,
        PrivacyUnit as PrivacyUnit,
        PureDP as PureDP,
        RandomizedResponse as RandomizedResponse,
        RenyiAccountant as RenyiAccountant,
        RenyiFilter as RenyiFilter,
        RenyiOdometer as RenyiOdometer,
        Repeated as Repeated,
        Shuffled as Shuffled,
        Skellam as Skellam,
        Zcdp as Zcdp,
        attacker_advantage as attacker_advantage,
        calibrate_noise as calibrate_noise,
        calibrate_rate as calibrate_rate,
        calibrate_rounds as calibrate_rounds,
        calibrate_steps as calibrate_steps,
        compute_noise_multiplier as compute_noise_multiplier,
        gaussian_rdp as gaussian_rdp,
        get_privacy_spent as get_privacy_spent,
        group_guarantee as group_guarantee,
        posterior_odds as posterior_odds,
        tradeoff_curve as tradeoff_curve,
        true_positive_rate as true_positive_rate,
    )
    from quietsum.running import Run as Run, forecast as forecast, resume as resume, run as run
    from quietsum.sampling import Everyone as Everyone, FixedSize as FixedSize, Poisson as Poisson
    from quietsum.tradeoff import (
        Outcome as Outcome,
        analyze_privacy_utility_tradeoff as analyze_privacy_utility_tradeoff,
        search_cost as search_cost,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
    __all__ = sorted([*__all__, "__version__"])
