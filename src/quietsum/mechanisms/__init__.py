"""What adds the noise: randomness from the operating system, mechanisms for one value, questions to a table, sums.

:mod:`~quietsum.mechanisms.rng` draws random bits, ``noise`` makes integer noise of them with exactly its law,
``central`` releases one value, ``queries`` answer questions to a table, ``local`` randomises at each holder, and
``gaussian`` and ``distributed`` make noisy sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.mechanisms.bayesian import (
        BayesianDiagnostic as BayesianDiagnostic,
        GaussianPrior as GaussianPrior,
        ObservedNorms as ObservedNorms,
        bayesian_loss as bayesian_loss,
    )
    from quietsum.mechanisms.central import (
        L1 as L1,
        L2 as L2,
        DiscreteGaussianMechanism as DiscreteGaussianMechanism,
        DiscreteLaplaceMechanism as DiscreteLaplaceMechanism,
        ExponentialMechanism as ExponentialMechanism,
        GaussianMechanism as GaussianMechanism,
        LaplaceMechanism as LaplaceMechanism,
        LInf as LInf,
        PermuteAndFlip as PermuteAndFlip,
        ReportNoisyMax as ReportNoisyMax,
        SkellamMechanism as SkellamMechanism,
    )
    from quietsum.mechanisms.clipping import clip_rows as clip_rows
    from quietsum.mechanisms.distributed import DistributedNoise as DistributedNoise
    from quietsum.mechanisms.gaussian import ClippedSum as ClippedSum, Mode as Mode, Vectors as Vectors
    from quietsum.mechanisms.local import (
        Bins as Bins,
        Categories as Categories,
        Estimate as Estimate,
        FrequencyProtocol as FrequencyProtocol,
        Header as Header,
        Interval as Interval,
        LocalProtocol as LocalProtocol,
        Unfit as Unfit,
        categories as categories,
        choose as choose,
        make_protocol as make_protocol,
        read_reports as read_reports,
        reports_file as reports_file,
    )
    from quietsum.mechanisms.local.reports import pieces_of as pieces_of
    from quietsum.mechanisms.local.shuffler import shuffle_reports as shuffle_reports
    from quietsum.mechanisms.noise.discrete_gaussian import DiscreteGaussianNoise as DiscreteGaussianNoise
    from quietsum.mechanisms.noise.laplace import (
        DiscreteLaplaceNoise as DiscreteLaplaceNoise,
        RoundedLaplaceNoise as RoundedLaplaceNoise,
    )
    from quietsum.mechanisms.noise.rounded_normal import (
        FAILURE_PER_DRAW as FAILURE_PER_DRAW,
        round_words as round_words,
    )
    from quietsum.mechanisms.noise.skellam import SkellamNoise as SkellamNoise
    from quietsum.mechanisms.quantile import QuantileRule as QuantileRule, within as within
    from quietsum.mechanisms.rng import (
        TEST_SWITCH as TEST_SWITCH,
        RandomSource as RandomSource,
        Shape as Shape,
        dimensions as dimensions,
        is_from_system as is_from_system,
        randomness_for_tests as randomness_for_tests,
        system_randomness as system_randomness,
    )
    from quietsum.mechanisms.shuffle_model import (
        ShuffledReports as ShuffledReports,
        largest_local_epsilon as largest_local_epsilon,
        shuffled_epsilon as shuffled_epsilon,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
