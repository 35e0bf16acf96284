"""Names of the older systems: each is there, and is the thing of ours that it stands for."""

from __future__ import annotations

import pytest

from quietsum import compat, mechanisms, privacy, tradeoff

SAME = {
    "GaussianMechanism": mechanisms, "LaplaceMechanism": mechanisms, "PrivacyAccountant": privacy,
    "RenyiAccountant": privacy, "analyze_privacy_utility_tradeoff": tradeoff, "compute_noise_multiplier": privacy,
    "gaussian_rdp": privacy, "get_privacy_spent": privacy,
}  # fmt: skip
TORCH = {"PrivacyConfig": "PrivacyConfig", "PrivacyPreservingTrainer": "PrivateTrainer", "make_private": "make_private"}


def test_the_list_is_the_whole_list() -> None:
    assert compat.__all__ == sorted({*SAME, *TORCH})


@pytest.mark.parametrize("name", sorted(SAME))
def test_a_name_is_ours(name: str) -> None:
    assert getattr(compat, name) is getattr(SAME[name], name)


@pytest.mark.parametrize(("old", "new"), sorted(TORCH.items()))
def test_a_name_of_training_is_ours(old: str, new: str) -> None:
    pytest.importorskip("torch")
    from quietsum import learning

    assert getattr(compat, old) is getattr(learning, new)


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"quietsum\.compat"):
        _ = compat.SplitPrivacy  # type: ignore[attr-defined]
