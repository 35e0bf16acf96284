"""Accountants by their older words, and the history of a checkpoint that another system wrote."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from quietsum import privacy
from quietsum.compat import DPGuarantee, PrivacyAccountant, import_checkpoint
from quietsum.errors import CorruptState, InvalidParameter

BLOCK: dict[str, Any] = {
    "target_delta": 1e-5,
    "sample_history": [(1.0, 0.1, 100), (1.0, 0.1, 100)],
    "user_history": [(0.5, 0.8, 1)],
    "cumulative_sample_epsilon": 2.5,
    "cumulative_user_epsilon": 0.3,
}


def test_older_words_make_the_accountant_that_ours_make() -> None:
    ours = privacy.PrivacyAccountant(noise_multiplier=1.2, sample_rate=0.0032, delta=1e-6, max_epsilon=1.0)
    older = PrivacyAccountant(noise_multiplier=1.2, sampling_probability=0.0032, target_delta=1e-6, target_epsilon=1.0)
    assert older.step(1000) == ours.step(1000)
    assert older.max_epsilon == 1.0 and older.target_delta == 1e-6


def test_a_value_under_two_names_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="give delta alone"):
        PrivacyAccountant(delta=1e-5, target_delta=1e-6)


def test_a_guarantee_of_three_numbers_keeps_them() -> None:
    made = DPGuarantee(2.5, 1e-5, 8.0)
    assert (made.epsilon, made.delta, made.order) == (2.5, 1e-5, 8.0)


def accounted() -> privacy.PrivacyAccountant:
    accountant = privacy.PrivacyAccountant(delta=1e-5)
    users: dict[str, Any] = {"noise_multiplier_user": 0.5, "sample_rate_user": 0.8, "steps_user": 1}
    for number in (1, 2):
        accountant.record_round(
            round_num=number, noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=100,
            **(users if number == 1 else {}),
        )  # fmt: skip
    return accountant


def test_a_history_is_priced_anew_and_its_claims_are_corrected() -> None:
    found = import_checkpoint({"privacy": BLOCK, "model": object()})
    assert found.accountant.get_cumulative_sample_epsilon() == accounted().get_cumulative_sample_epsilon()
    assert found.accountant.get_cumulative_user_epsilon() == accounted().get_cumulative_user_epsilon()
    assert len(found.corrections) == 2 and "per client" in found.corrections[1]


def test_a_claim_that_is_true_needs_no_correction() -> None:
    true = accounted()
    claims = {
        "cumulative_sample_epsilon": true.get_cumulative_sample_epsilon(),
        "cumulative_user_epsilon": true.get_cumulative_user_epsilon(),
    }
    assert import_checkpoint({**BLOCK, **claims}).corrections == ()


@pytest.mark.parametrize("level", ["sample", "user"])
@pytest.mark.parametrize("history", [[], None])
def test_a_claim_without_a_history_is_refused_and_not_priced_at_nothing(level: str, history: Any) -> None:
    with pytest.raises(CorruptState, match=f"claims ε = .* by {level} with no {level}_history"):
        import_checkpoint({**BLOCK, f"{level}_history": history})
    found = import_checkpoint({**BLOCK, f"{level}_history": history, f"cumulative_{level}_epsilon": 0.0})
    assert found.corrections and len(found.corrections) == 1


def test_a_json_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "last.json").write_text(json.dumps({"privacy": BLOCK}), encoding="utf-8")
    assert len(import_checkpoint(tmp_path / "last.json").accountant.sample_history) == 2


def test_a_file_of_torch_is_read_and_nothing_in_it_is_called(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"privacy": BLOCK, "model": {"weight": torch.zeros(3)}}, tmp_path / "round.pt")
    assert len(import_checkpoint(tmp_path / "round.pt").accountant.sample_history) == 2

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "called",))

    torch.save({"privacy": BLOCK, "model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CorruptState, match="more than numbers and tensors"):
        import_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "called").exists()
    with zipfile.ZipFile(tmp_path / "evil.pt") as archive:  # the control: whoever unpickles it does call
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))

        class Loader(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                return None

        with archive.open(name) as stream:
            Loader(stream).load()
    assert (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sample_history": [(1.0, 0.1)]}, "not of"),
        ({"sample_history": [(-1.0, 0.1, 10)]}, "cannot be used"),
        ({"sample_history": [(1.0, 1.5, 10)]}, "cannot be used"),
        ({"sample_history": 7}, "not of"),
        ({"sample_history": [(float("nan"), 0.1, 10)]}, "cannot be used"),
        ({"target_delta": 0}, "cannot be used"),
        ({"target_delta": None}, "cannot be used"),
        ({"cumulative_sample_epsilon": float("nan")}, "cannot be used"),
    ],
)
def test_a_block_that_cannot_be_true_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptState, match=words):
        import_checkpoint({"privacy": {**BLOCK, **change}})


def test_an_accountant_that_is_given_another_systems_block_says_what_reads_it() -> None:
    with pytest.raises(CorruptState, match="import_checkpoint"):
        privacy.PrivacyAccountant(delta=1e-5).load_state_dict(BLOCK)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"privacy": 3}', "{}", "[" * 5000, "PK\x03\x04 no archive"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "last.json").write_text(text, encoding="utf-8")
    with pytest.raises(CorruptState):
        import_checkpoint(tmp_path / "last.json")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="is no file"):
        import_checkpoint(tmp_path / "last.json")
