"""Names of the systems that quietsum unites, for code that was written for them. They stay, and are tested for ever.

Each is another name for something of ours, with our meaning: where a formula of the older system was wrong, the right
one is used. New code imports from :mod:`quietsum` and its rooms.

>>> from quietsum.compat import compute_noise_multiplier, gaussian_rdp
>>> gaussian_rdp(order=8, noise_multiplier=2.0)
1.0
>>> numbers = {"sample_rate": 0.01, "steps_per_round": 10, "num_rounds": 100}
>>> compute_noise_multiplier(target_epsilon=1.0, target_delta=1e-5, **numbers) > 1.0
True

Where only a word differs (``target_epsilon``, ``use_opacus``), the names here take the older word: accountants in
:mod:`~quietsum.compat.accounting`, training in :mod:`~quietsum.compat.training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.compat.accounting import (
        DPGuarantee as DPGuarantee,
        ImportedHistory as ImportedHistory,
        PrivacyAccountant as PrivacyAccountant,
        import_checkpoint as import_checkpoint,
    )
    from quietsum.compat.training import (
        ManualDPTrainer as ManualDPTrainer,
        OpacusDPTrainer as OpacusDPTrainer,
        PrivacyEngine as PrivacyEngine,
        PrivacyPreservingTrainer as PrivacyPreservingTrainer,
        TrainingConfig as TrainingConfig,
        analyze_privacy_utility_tradeoff as analyze_privacy_utility_tradeoff,
        create_privacy_config as create_privacy_config,
        make_private as make_private,
    )
    from quietsum.learning import PrivacyConfig as PrivacyConfig
    from quietsum.mechanisms import GaussianMechanism as GaussianMechanism, LaplaceMechanism as LaplaceMechanism
    from quietsum.privacy import (
        RenyiAccountant as RenyiAccountant,
        compute_noise_multiplier as compute_noise_multiplier,
        gaussian_rdp as gaussian_rdp,
        get_privacy_spent as get_privacy_spent,
    )
    from quietsum.tasks import STGCN as STGCN_PRISM

    __all__ = ["STGCN_PRISM"]  # the others say so by "as" their own name
else:
    _TORCH = "trains torch models; install them with: pip install 'quietsum[train]'"
    __getattr__, __dir__, __all__ = open_door(__name__, lacking={"torch": _TORCH})
