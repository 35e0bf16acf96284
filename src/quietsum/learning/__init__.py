"""Learning: private steps on one party's rows.

``private_steps`` is DP-SGD in numpy. ``PrivateTrainer``, ``PrivacyConfig`` and ``make_private`` train torch models;
they need the extra ``quietsum[train]`` and load torch when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.learning.callbacks import EarlyStopping as EarlyStopping, StopTraining as StopTraining
    from quietsum.learning.canaries.party import (
        CANARIES as CANARIES,
        CanaryRound as CanaryRound,
        PartyCanaries as PartyCanaries,
        canaries_of as canaries_of,
        carry_steps as carry_steps,
        label_of as label_of,
        party_folder as party_folder,
        read_party as read_party,
        site_folder as site_folder,
    )
    from quietsum.learning.canaries.record import (
        Canaries as Canaries,
        CanaryRecord as CanaryRecord,
        choose_canaries as choose_canaries,
        read_canaries as read_canaries,
    )
    from quietsum.learning.checks.before_training import while_checking as while_checking, wrap_task as wrap_task
    from quietsum.learning.checks.cards import list_cards as list_cards
    from quietsum.learning.checks.numpy_step import (
        CheckedDescent as CheckedDescent,
        Field as Field,
        MadeUp as MadeUp,
        Silent as Silent,
    )
    from quietsum.learning.classifier import PrivateClassifier as PrivateClassifier
    from quietsum.learning.clients.footprint import Footprint as Footprint, measure_footprint as measure_footprint
    from quietsum.learning.clients.local import LocalSteps as LocalSteps
    from quietsum.learning.clients.plain import fresh_model as fresh_model, train_plainly as train_plainly
    from quietsum.learning.clients.side_by_side import SideBySide as SideBySide
    from quietsum.learning.clipping import (
        Automatic as Automatic,
        Clip as Clip,
        Flat as Flat,
        FlatL1 as FlatL1,
        PerLayer as PerLayer,
    )
    from quietsum.learning.config import (
        PrivacyConfig as PrivacyConfig,
        TrainingSchedule as TrainingSchedule,
        plan_training as plan_training,
    )
    from quietsum.learning.descent import (
        clipped_sum as clipped_sum,
        gradients_of as gradients_of,
        private_steps as private_steps,
    )
    from quietsum.learning.engines.batch_mixing import (
        fix_batch_norm as fix_batch_norm,
        keep_unchanged as keep_unchanged,
    )
    from quietsum.learning.engines.protocol import (
        Batch as Batch,
        Engine as Engine,
        Loss as Loss,
        engine_for as engine_for,
        losses_of as losses_of,
        rows_of as rows_of,
    )
    from quietsum.learning.engines.rules import rule as rule
    from quietsum.learning.engines.shared.vocabulary import score_tokens as score_tokens
    from quietsum.learning.libraries.adapters import (
        fill_trained as fill_trained,
        hash_frozen as hash_frozen,
        save_trained as save_trained,
    )
    from quietsum.learning.libraries.hf_trainer import WrappedTrainer as WrappedTrainer, wrap_trainer as wrap_trainer
    from quietsum.learning.libraries.lightning import (
        WrappedLightning as WrappedLightning,
        wrap_lightning as wrap_lightning,
    )
    from quietsum.learning.noise.gradient_noise import find_uncovered_norms as find_uncovered_norms
    from quietsum.learning.own_loop import (
        PoissonLoader as PoissonLoader,
        PrivateOptimizer as PrivateOptimizer,
        make_private as make_private,
    )
    from quietsum.learning.rehearsal import rehearse_model as rehearse_model, scoring as scoring, training as training
    from quietsum.learning.rows.memory import limit_memory as limit_memory
    from quietsum.learning.rows.people import bound_people as bound_people
    from quietsum.learning.rows.records import Records as Records
    from quietsum.learning.saving import fill_model as fill_model
    from quietsum.learning.spending import as_priced_today as as_priced_today
    from quietsum.learning.step import cross_entropy as cross_entropy
    from quietsum.learning.trainer import (
        Epoch as Epoch,
        PrivateTrainer as PrivateTrainer,
        TrainingHistory as TrainingHistory,
        progress_line as progress_line,
    )
else:
    __getattr__, __dir__, __all__ = open_door(
        __name__,
        lacking={
            "torch": "trains torch models; install them with: pip install 'quietsum[train]'",
            "sklearn": "has scikit-learn's interface; install it with: pip install 'quietsum[train]'",
        },
    )
