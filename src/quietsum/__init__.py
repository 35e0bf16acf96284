"""quietsum: train one model across sites that never share their data, and prove what it cost in privacy.

What touches data is described by *events*; an *accountant* turns events into a *guarantee*.

>>> import quietsum as qs
>>> step = qs.PoissonSampled(rate=0.01, event=qs.Gaussian(noise_multiplier=1.0))
>>> guarantee = qs.RenyiAccountant().compose(step, times=10_000).epsilon(delta=1e-5)
>>> guarantee.unit, guarantee.epsilon > 6.18
(<PrivacyUnit.RECORD: 'record'>, True)

The names here are those of everyday work, in seven groups:

- *run*: ``Plan``, ``load_plan``, ``forecast``, ``run``, ``resume``, ``load_model``, ``Run``, ``Ledger``;
- *train*: ``PrivateTrainer``, ``PrivacyConfig``, ``make_private``, ``PrivateClassifier`` (these need torch);
- *account*: accountants, ``Guarantee``, ``Budget``, their units, ``calibrate_…`` and what an attacker gains;
- *events*: what touched the data; *mechanisms*: one noisy number, vector or choice; *sampling*: who is drawn;
- *errors*: what a caller catches.

Everything else stands in its room: :mod:`quietsum.privacy`, :mod:`quietsum.mechanisms`, :mod:`quietsum.tasks` (to write
a task), :mod:`quietsum.tradeoff`, :mod:`quietsum.errors`, and :mod:`quietsum.compat` for names of older systems.

Importing the package loads no other library: each name brings in its own module when it is first asked for (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

__version__ = "0.1.0"

if TYPE_CHECKING:
    from quietsum.errors import (
        BudgetExhausted as BudgetExhausted,
        InvalidParameter as InvalidParameter,
        LedgerBroken as LedgerBroken,
        PlanRefused as PlanRefused,
        QuietsumError as QuietsumError,
        TooFewParties as TooFewParties,
    )
    from quietsum.learning import (
        PrivacyConfig as PrivacyConfig,
        PrivateClassifier as PrivateClassifier,
        PrivateTrainer as PrivateTrainer,
        make_private as make_private,
    )
    from quietsum.ledger import Ledger as Ledger
    from quietsum.mechanisms import (
        L1 as L1,
        L2 as L2,
        ClippedSum as ClippedSum,
        ExponentialMechanism as ExponentialMechanism,
        GaussianMechanism as GaussianMechanism,
        LaplaceMechanism as LaplaceMechanism,
    )
    from quietsum.plan import Plan as Plan, load_plan as load_plan
    from quietsum.privacy import (
        Accountant as Accountant,
        Budget as Budget,
        Composed as Composed,
        DiscreteGaussian as DiscreteGaussian,
        ExactAccountant as ExactAccountant,
        FixedSizeSampled as FixedSizeSampled,
        Gaussian as Gaussian,
        Guarantee as Guarantee,
        Laplace as Laplace,
        Neighbours as Neighbours,
        PldAccountant as PldAccountant,
        PoissonSampled as PoissonSampled,
        PrivacyUnit as PrivacyUnit,
        RenyiAccountant as RenyiAccountant,
        Repeated as Repeated,
        attacker_advantage as attacker_advantage,
        calibrate_noise as calibrate_noise,
        calibrate_rate as calibrate_rate,
        calibrate_rounds as calibrate_rounds,
        calibrate_steps as calibrate_steps,
        true_positive_rate as true_positive_rate,
    )
    from quietsum.running import (
        Run as Run,
        forecast as forecast,
        load_model as load_model,
        resume as resume,
        run as run,
    )
    from quietsum.sampling import Everyone as Everyone, FixedSize as FixedSize, Poisson as Poisson
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
    __all__ = sorted([*__all__, "__version__"])
