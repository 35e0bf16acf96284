"""The noise that torch training adds: its law, its scale, its freshness, and what it says about itself."""

from __future__ import annotations

import concurrent.futures
import math
import os
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from quietsum import Gaussian, Laplace
from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Flat
from quietsum.learning.engines.protocol import engine_for
from quietsum.learning.noise import chacha
from quietsum.learning.noise.chacha import blocks, words
from quietsum.learning.noise.gradient_noise import (
    TorchNoise,
    _DeviceNoise,
    fast_laplace,
    fast_normals,
    float_margin,
    more_noise,
)
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness

MANY = 1 << 18
LIKE = [torch.zeros(7, 3), torch.zeros(5)]


@pytest.fixture(autouse=True)
def seeds_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def source(seed: int = 1) -> RandomSource:
    return randomness_for_tests(seed)


def fits(values: torch.Tensor, law: str) -> bool:
    return float(stats.kstest(values.numpy(), law).pvalue) > 1e-6


def test_fast_normals_are_normal_and_the_test_would_see_three_percent_less_noise() -> None:
    values = fast_normals(MANY, source())
    assert values.dtype == torch.float64 and fits(values, "norm")
    assert not fits(values * 0.97, "norm")  # the control


def test_fast_normals_have_the_moments_and_no_correlation_between_neighbours() -> None:
    values = fast_normals(MANY, source(2))
    deviation = 1 / math.sqrt(MANY)
    assert abs(float(values.mean())) < 6 * deviation
    assert abs(float(values.square().mean()) - 1) < 6 * math.sqrt(2) * deviation
    assert abs(float(values.pow(4).mean()) - 3) < 6 * math.sqrt(96) * deviation
    for power in (1, 2):
        left, right = values[:-1] ** power, values[1:] ** power
        assert abs(float(np.corrcoef(left.numpy(), right.numpy())[0, 1])) < 6 / math.sqrt(MANY)


def test_the_inverse_error_function_under_them_is_that_of_mpmath() -> None:
    import mpmath

    places = torch.tensor([1e-12, 0.1, 0.5, 0.9, 0.9999, 1 - 1e-9], dtype=torch.float64)
    found = torch.erfinv(places).tolist()
    wanted = [float(mpmath.erfinv(mpmath.mpf(place))) for place in places.tolist()]
    assert found == pytest.approx(wanted, rel=1e-9)


def test_fast_normals_reach_as_far_as_the_law_where_float32_normals_would_end() -> None:
    class Extreme:
        """A source whose words are the smallest and largest there are."""

        def words(self, count: int) -> np.ndarray:
            return np.array([1 << 63, (1 << 63) - 1] * count, dtype=np.uint64)[:count]  # as signed: both ends

    values = fast_normals(2, Extreme())  # type: ignore[arg-type]
    furthest = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - 2.0**-53, dtype=torch.float64)))
    assert values.tolist() == pytest.approx([-furthest, furthest], rel=1e-12) and furthest > 8.2


def test_an_odd_number_of_normals_is_an_odd_number() -> None:
    assert fast_normals(7, source()).shape == (7,) and fast_normals(0, source()).shape == (0,)


def test_fast_laplace_is_laplace_and_not_normal() -> None:
    values = fast_laplace(MANY, source())
    assert fits(values, "laplace") and not fits(values * 1.03, "laplace")
    assert not fits(values / math.sqrt(2), "norm")


@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_the_noise_added_has_the_scale_that_the_event_states(mode: str) -> None:
    noise = TorchNoise(noise_multiplier=1.7, sensitivity=0.3, mode=mode, expected_batch=8.0, source=source(3))
    sums = [torch.zeros(400, 400, dtype=torch.float64)]
    added = noise.add(sums)[0]
    scale = 1.7 * 0.3
    if mode == "secure":
        scale *= 1 + float_margin(torch.float64, 8.0) + 400 * 2.0**-24
    assert fits(added.flatten() / scale, "norm") and not fits(added.flatten() / (scale * 0.97), "norm")
    assert noise.event() == Gaussian(noise_multiplier=1.7)


def test_draw_and_add_draw_from_the_same_law_and_never_the_same_numbers() -> None:
    for mode in ("fast", "secure"):
        noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode=mode)
        first, second = noise.draw(LIKE), noise.draw(LIKE)
        assert [part.shape for part in first] == [part.shape for part in LIKE]
        assert all(part.dtype == torch.float64 for part in first)
        assert not any(bool((one == two).any()) for one, two in zip(first, second, strict=True))


def test_secure_releases_lie_on_the_grid_and_fast_ones_do_not() -> None:
    sums = [torch.linspace(-3, 3, 1000, dtype=torch.float32)]
    on_grid = TorchNoise(noise_multiplier=1.0, sensitivity=0.25, mode="secure").add(sums)[0] / (0.25 * 2.0**-24)
    assert bool((on_grid == on_grid.round()).all())
    off_grid = TorchNoise(noise_multiplier=1.0, sensitivity=0.25).add(sums)[0] / (0.25 * 2.0**-24)
    assert not bool((off_grid == off_grid.round()).all())


def test_secure_noise_covers_what_rounding_adds_to_the_sensitivity() -> None:
    """Two sums that differ by a vector of norm C, rounded to the grid, differ by no more than the noise covers."""
    rng = np.random.default_rng(5)
    noise = TorchNoise(noise_multiplier=2.0, sensitivity=1.0, mode="secure", expected_batch=1.0)
    coordinates = 10_000
    like = [torch.zeros(coordinates, dtype=torch.float64)]
    width, scale = noise.grid(like)
    covered = scale / 2.0
    worst = 0.0
    for _ in range(20):
        total = rng.normal(size=coordinates)
        more = rng.normal(size=coordinates)
        more /= np.linalg.norm(more)
        moved = np.rint((total + more) / width) - np.rint(total / width)
        worst = max(worst, float(np.linalg.norm(moved)))
    assert 1 / width < worst <= covered  # rounding does add something, and it is covered


def test_the_margin_grows_with_the_batch_and_shrinks_with_precision() -> None:
    assert float_margin(torch.float32, 4096) > float_margin(torch.float32, 64) > float_margin(torch.float64, 4096)
    assert float_margin(torch.float32, 256) < 0.01


def test_a_float32_sum_of_clipped_rows_stays_within_the_margin() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(512, 300, generator=generator, dtype=torch.float64)
    rows = (rows / rows.norm(dim=1, keepdim=True)).abs()  # all on one side, so that partial sums are large
    single = rows.to(torch.float32)
    error = float((single.sum(0).double() - single.double().sum(0)).norm())
    assert error <= float_margin(torch.float32, 256)  # 512 is within twice the expected batch


def test_a_long_float32_sum_is_made_of_blocks_and_stays_within_a_margin_that_grows_with_its_length_alone() -> None:
    class Moved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows @ self.weight

    rows = torch.rand(60_000, 8, generator=torch.Generator().manual_seed(0)) / 3  # shorter than 1, all on one side
    for name in ("vmap", "auto"):
        engine = engine_for(name, Moved(), lambda model, batch: model(batch[0]), Flat(max_norm=1.0))
        (total,) = engine.clipped_sum((rows,))
        error = float((total.double() - rows.double().sum(0)).norm())
        assert error <= float_margin(torch.float32, 30_000)  # 60,000 is twice the expected batch
    one_by_one = np.add.accumulate(rows.numpy(), axis=0)[-1].astype(np.float64)  # a plain sum in single precision
    assert float(np.linalg.norm(one_by_one - rows.double().sum(0).numpy())) > 10 * error
    assert float_margin(torch.float32, 200_000) < 2.1 * float_margin(torch.float32, 100_000)


def test_noise_that_is_much_larger_than_the_clip_needs_is_spoken_of() -> None:
    weights = [torch.zeros(31)]
    few, many = (
        TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode="secure", expected_batch=size) for size in (256, 50_000)
    )
    assert more_noise(few, weights) == ""
    told = more_noise(many, weights)
    assert "1.38 times" in told and "50,000 gradients" in told and "float64" in told
    assert more_noise(many, [weights[0].double()]) == ""
    assert more_noise(TorchNoise(noise_multiplier=1.0, sensitivity=1.0, expected_batch=50_000), weights) == ""


def test_noise_touches_no_generator_of_torch_or_numpy() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state().clone()
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    first = noise.draw(LIKE)[0]
    assert bool((torch.get_rng_state() == before).all())
    torch.manual_seed(0)
    assert not bool((noise.draw(LIKE)[0] == first).any())


def test_noise_cannot_be_saved() -> None:
    with pytest.raises(TypeError, match="never copied or saved"):
        pickle.dumps(TorchNoise(noise_multiplier=1.0, sensitivity=1.0)._source)
    with pytest.raises(TypeError):
        pickle.dumps(TorchNoise(noise_multiplier=1.0, sensitivity=1.0))


def test_only_secure_noise_goes_without_a_label_and_pays_for_its_failure() -> None:
    fast = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    secure = TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode="secure")
    assert fast.label == "not floating-point safe" and fast.failure(10**9) == 0.0
    assert secure.label == "" and 0 < secure.failure(10**9) < 1e-28


def test_laplace_noise_states_a_laplace_event_and_has_no_secure_mode() -> None:
    noise = TorchNoise(noise_multiplier=2.0, sensitivity=0.5, law="laplace", source=system_randomness())
    assert noise.event() == Laplace(noise_multiplier=2.0)
    with pytest.raises(InvalidParameter, match="L1"):
        TorchNoise(noise_multiplier=2.0, sensitivity=0.5, law="laplace", mode="secure")


@pytest.mark.parametrize(
    "bad",
    [
        {"noise_multiplier": 0.0}, {"noise_multiplier": -1.0}, {"noise_multiplier": float("nan")},
        {"noise_multiplier": 1e30}, {"sensitivity": 0.0}, {"sensitivity": float("inf")}, {"law": "cauchy"},
        {"mode": "slow"}, {"expected_batch": 0.0},
    ],
)  # fmt: skip
def test_bad_values_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        TorchNoise(**{"noise_multiplier": 1.0, "sensitivity": 1.0, **bad})  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_noise_on_a_gpu_is_float64_and_fresh() -> None:
    like = [torch.zeros(1000, device="cuda")]
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    torch.manual_seed(0)
    first = noise.draw(like)[0]
    torch.manual_seed(0)
    assert first.dtype == torch.float64 and first.is_cuda and not bool((noise.draw(like)[0] == first).any())


# ------------------------------------------------------------------------------------------- drawn ahead


def test_small_draws_come_from_one_block_each_value_once_and_share_no_memory() -> None:
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    like = (torch.zeros(1000, dtype=torch.float64),)
    drawn = [noise.add(like)[0] for _ in range(200)]  # about three blocks
    values = torch.cat(drawn)
    assert len(torch.unique(values)) == len(values)
    storages = {part.untyped_storage().data_ptr() for part in drawn}
    assert len(storages) == len(drawn)
    assert all(part.untyped_storage().nbytes() == 8000 for part in drawn)  # no value to come travels along


def test_another_scale_goes_on_with_the_same_block_and_repeats_nothing() -> None:
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    like = (torch.zeros(500, dtype=torch.float64),)
    first = noise.draw(like)[0]
    second = noise.rescale(noise_multiplier=2.0, sensitivity=1.0).draw(like)[0] / 2
    third = noise.draw(like)[0]
    values = torch.cat([first, second, third])
    assert len(torch.unique(values)) == len(values)


def test_another_process_draws_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child has a copy of the block; its process number differs, so it throws the copy away."""
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    like = (torch.zeros(16, dtype=torch.float64),)
    noise.draw(like)  # the block is filled before the fork
    held = noise._ahead._left.clone()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    theirs = noise.draw(like)[0]
    assert not set(theirs.tolist()) & set(held.tolist())


def test_threads_that_share_noise_never_get_the_same_numbers() -> None:
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    zeros = [torch.zeros(997, dtype=torch.float64)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: noise.add(zeros)[0], range(400)))
    every = torch.cat(drawn)
    assert len(torch.unique(every)) == len(every)  # float64 normals: a tie by chance is one in a thousand million


# ------------------------------------------------------------------------------------------------ on a card


def test_the_keystream_is_that_of_rfc_8439() -> None:
    """Section 2.3.2, and the first two vectors of appendix A.1."""
    nonce = bytes.fromhex("000000090000004a00000000")
    found = blocks(bytes(range(32)), 1, counter=1, nonce=nonce)[:, 0].numpy().tobytes().hex()
    assert found == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    both = blocks(bytes(32), 2).t().contiguous().numpy().tobytes().hex()
    assert both.startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert both[128:].startswith("9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed")


def test_the_keystream_is_that_of_another_library() -> None:
    for counter, count in ((0, 300), (7, 1), (2**32 - 5, 5)):
        key, nonce = os.urandom(32), os.urandom(12)
        cipher = Cipher(algorithms.ChaCha20(key, counter.to_bytes(4, "little") + nonce), mode=None).encryptor()
        wanted = cipher.update(bytes(64 * count))
        assert blocks(key, count, counter=counter, nonce=nonce).t().contiguous().numpy().tobytes() == wanted
        other = blocks(bytes([key[0] ^ 1]) + key[1:], count, counter=counter, nonce=nonce)  # the control
        assert other.t().contiguous().numpy().tobytes() != wanted


def test_words_are_pairs_of_one_block_in_any_number_and_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.urandom(32)
    low_and_high = blocks(key, 40).numpy().view(np.uint32).astype(np.uint64)
    wanted = (low_and_high[1::2] << np.uint64(32) | low_and_high[0::2]).reshape(-1)
    whole = words(key, 320, "cpu")
    assert np.array_equal(whole.numpy().view(np.uint64), wanted)
    assert torch.equal(words(key, 313, "cpu"), whole[:313]) and len(words(key, 0, "cpu")) == 0
    monkeypatch.setattr(chacha, "_AT_ONCE", 7)
    assert torch.equal(words(key, 320, "cpu"), whole)
    for bad in (b"short", bytes(33)):
        with pytest.raises(InvalidParameter):
            words(bad, 1, "cpu")


def device_noise(law: str, count: int, seed: int | None = None) -> torch.Tensor:
    """What a card draws, drawn on a processor."""
    made = system_randomness() if seed is None else source(seed)
    return _DeviceNoise(made).draw(count, torch.device("cpu"), law)


def test_normals_made_for_a_card_are_normal_to_their_tails_and_laplace_numbers_are_laplace() -> None:
    normal, laplace = device_noise("gaussian", MANY, 5), device_noise("laplace", MANY, 6)
    assert normal.dtype == laplace.dtype == torch.float64
    assert scipy.stats.kstest(normal.numpy(), "norm").pvalue > 1e-6
    assert scipy.stats.kstest(laplace.numpy(), "laplace").pvalue > 1e-6
    assert scipy.stats.kstest((normal * 0.99).numpy(), "laplace").pvalue < 1e-6  # the control
    beyond = int((normal.abs() > 3).sum())
    assert scipy.stats.binomtest(beyond, MANY, 2 * scipy.stats.norm.sf(3)).pvalue > 1e-6
    assert torch.unique(normal).numel() == MANY


def test_normals_made_for_a_card_end_at_eight_point_three_deviations(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([-(2**63), 2**63 - 1, 0, 1])
    monkeypatch.setattr(chacha, "words", lambda key, count, device: ends)
    drawn = _DeviceNoise(system_randomness()).draw(4, torch.device("cpu"), "gaussian")
    assert bool(drawn.isfinite().all()) and 8.2 < float(drawn.max()) < 8.4 and -8.4 < float(drawn.min()) < -8.2


def test_every_draw_for_a_card_has_a_fresh_key_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []
    honest = chacha.words

    def noted(key: bytes, *rest: Any) -> Any:
        keys.append(key)
        return honest(key, *rest)

    monkeypatch.setattr(chacha, "words", noted)
    noise = _DeviceNoise(system_randomness())
    first, second = (noise.draw(8, torch.device("cpu"), "gaussian") for _ in range(2))
    assert len(set(keys)) == 2 and {len(key) for key in keys} == {32} and not torch.equal(first, second)
    assert torch.equal(device_noise("gaussian", 8, 1), device_noise("gaussian", 8, 1))  # a seed for tests repeats
    assert not hasattr(noise, "__dict__") and noise.__slots__ == ("_source",), "nothing is kept that could be replayed"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_card_makes_the_same_words_as_a_processor() -> None:
    key = os.urandom(32)
    assert torch.equal(words(key, 100_003, "cuda").cpu(), words(key, 100_003, "cpu"))
