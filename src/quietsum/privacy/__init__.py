"""What an event costs: events, guarantees and accountants. Needs numpy and scipy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.privacy.accounting import (
        ACCOUNTING as ACCOUNTING,
        BOUNDED as BOUNDED,
        Accountant as Accountant,
        CopyableAccountant as CopyableAccountant,
        accountant_for as accountant_for,
        cache_clear as cache_clear,
    )
    from quietsum.privacy.attacker import (
        attacker_advantage as attacker_advantage,
        explain_no_promise as explain_no_promise,
        posterior_odds as posterior_odds,
        tradeoff_curve as tradeoff_curve,
        true_positive_rate as true_positive_rate,
    )
    from quietsum.privacy.calibration import (
        calibrate as calibrate,
        calibrate_noise as calibrate_noise,
        calibrate_rate as calibrate_rate,
        calibrate_rounds as calibrate_rounds,
        calibrate_steps as calibrate_steps,
        compute_noise_multiplier as compute_noise_multiplier,
        most_steps as most_steps,
    )
    from quietsum.privacy.classical import ClassicalAccountant as ClassicalAccountant
    from quietsum.privacy.concentrated import ConcentratedAccountant as ConcentratedAccountant
    from quietsum.privacy.events import (
        EVENT_VERSION as EVENT_VERSION,
        ApproximateDP as ApproximateDP,
        Composed as Composed,
        Diagnostic as Diagnostic,
        DiscreteGaussian as DiscreteGaussian,
        DiscreteGaussianSum as DiscreteGaussianSum,
        DiscreteLaplace as DiscreteLaplace,
        FixedSizeSampled as FixedSizeSampled,
        Gaussian as Gaussian,
        Group as Group,
        Laplace as Laplace,
        OneInOneOut as OneInOneOut,
        PoissonSampled as PoissonSampled,
        PrivacyEvent as PrivacyEvent,
        PureDP as PureDP,
        RandomizedResponse as RandomizedResponse,
        Repeated as Repeated,
        Shuffled as Shuffled,
        Skellam as Skellam,
        Zcdp as Zcdp,
        from_dict as from_dict,
        from_json as from_json,
        require_event as require_event,
        to_dict as to_dict,
        to_json as to_json,
    )
    from quietsum.privacy.exact.accountant import ExactAccountant as ExactAccountant
    from quietsum.privacy.exact.closed_forms import (
        gaussian_epsilon as gaussian_epsilon,
        log_gaussian_delta as log_gaussian_delta,
    )
    from quietsum.privacy.groups import (
        bound_record_event as bound_record_event,
        group_guarantee as group_guarantee,
        person_event as person_event,
    )
    from quietsum.privacy.guarantee import Budget as Budget, Guarantee as Guarantee
    from quietsum.privacy.old_rules import restate_by_old_rules as restate_by_old_rules
    from quietsum.privacy.pairs import (
        bounds_contributions as bounds_contributions,
        group_size as group_size,
        reduce_event as reduce_event,
    )
    from quietsum.privacy.pld.accountant import PldAccountant as PldAccountant
    from quietsum.privacy.renyi.accountant import RenyiAccountant as RenyiAccountant, gaussian_rdp as gaussian_rdp
    from quietsum.privacy.renyi.curves import failure_of as failure_of
    from quietsum.privacy.renyi.filters import (
        RenyiFilter as RenyiFilter,
        RenyiOdometer as RenyiOdometer,
        best_order as best_order,
    )
    from quietsum.privacy.rounds import PrivacyAccountant as PrivacyAccountant, get_privacy_spent as get_privacy_spent
    from quietsum.privacy.shuffled import shuffled_epsilon_lower as shuffled_epsilon_lower
    from quietsum.privacy.units import Neighbours as Neighbours, Observer as Observer, PrivacyUnit as PrivacyUnit
    from quietsum.privacy.wording import bounds_of as bounds_of, facts_of as facts_of, figure_of as figure_of
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
