"""Names of the older systems: each is there, and is the thing of ours that it stands for."""

from __future__ import annotations

import pytest

from quietsum import compat, mechanisms, privacy

SAME = {
    "GaussianMechanism": mechanisms, "LaplaceMechanism": mechanisms, "RenyiAccountant": privacy,
    "compute_noise_multiplier": privacy, "gaussian_rdp": privacy, "get_privacy_spent": privacy,
}  # fmt: skip
WORDS = {"DPGuarantee", "ImportedHistory", "PrivacyAccountant", "import_checkpoint"}
"""What takes older words and needs no torch."""
TORCH = {
    "ManualDPTrainer", "OpacusDPTrainer", "PrivacyConfig", "PrivacyEngine", "PrivacyPreservingTrainer", "STGCN_PRISM",
    "TrainingConfig", "analyze_privacy_utility_tradeoff", "create_privacy_config", "make_private",
}  # fmt: skip


def test_the_list_is_the_whole_list() -> None:
    assert compat.__all__ == sorted({*SAME, *WORDS, *TORCH})


@pytest.mark.parametrize("name", sorted(SAME))
def test_a_name_is_ours(name: str) -> None:
    assert getattr(compat, name) is getattr(SAME[name], name)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_name_that_takes_older_words_says_what_it_is(name: str) -> None:
    assert (getattr(compat, name).__doc__ or "").strip()


@pytest.mark.parametrize("name", sorted(TORCH))
def test_a_name_of_training_says_what_it_is(name: str) -> None:
    pytest.importorskip("torch")
    assert (getattr(compat, name).__doc__ or "").strip()


def test_the_names_of_training_that_kept_their_meaning_are_ours() -> None:
    pytest.importorskip("torch")
    from quietsum import learning, tasks

    assert compat.PrivacyConfig is learning.PrivacyConfig
    assert compat.STGCN_PRISM is tasks.STGCN


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"quietsum\.compat"):
        _ = compat.SplitPrivacy  # type: ignore[attr-defined]
