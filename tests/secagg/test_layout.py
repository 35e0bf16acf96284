"""Layout and rotation: sums come back exactly, what could wrap around or makes no sense is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.secagg import masks, rotation
from quietsum.secagg.layout import BITS, CUT, Layout, NamedVector, from_wire, to_wire, wire_size

SEED = bytes(range(32))


def one(**changes: Any) -> NamedVector:
    plain: dict[str, Any] = {"name": "update", "size": 4, "bound": 1.0, "scale": 100.0}
    return NamedVector(**(plain | changes))


# ------------------------------------------------------------------------------------------------ no wrap-around


@given(
    bits=st.sampled_from(BITS),
    parties=st.integers(1, 300),
    bound=st.floats(1e-3, 1e3),
    scale=st.floats(1e-3, 1e6),
    tail=st.integers(0, 1000),
    data=st.data(),
)
@settings(deadline=None)
def test_a_layout_either_refuses_or_returns_every_sum_exactly_even_at_the_extremes(
    bits: int, parties: int, bound: float, scale: float, tail: int, data: st.DataObject
) -> None:
    """Every party at plus or minus its bound, and the noise at its tail: the worst that the proof allows."""
    part = one(bound=bound, scale=scale, noise_tail=tail)
    if parties * math.ceil(bound * scale) + tail > 2 ** (bits - 1) - 1:
        with pytest.raises(PlanRefused, match="could wrap around"):
            Layout(vectors=(part,), parties=parties, bits=bits)
        return
    layout = Layout(vectors=(part,), parties=parties, bits=bits)
    signs = data.draw(st.lists(st.sampled_from((-1, 0, 1)), min_size=4, max_size=4))
    values = np.array(signs) * bound
    vector = layout.encode({"update": values})
    noise = np.array(signs, dtype=np.int64) * tail
    total = vector * np.uint32(parties) + noise.astype(np.uint32)  # modulo 2³²
    expected = parties * np.rint(values * scale).astype(np.int64) + noise
    assert (layout.sums(total)["update"] == expected).all()
    kept = from_wire(to_wire(total, bits=bits), size=4, bits=bits)  # only the low bits travelled
    assert (layout.sums(kept)["update"] == expected).all()


def test_one_step_beyond_the_proof_is_refused_and_would_have_wrapped() -> None:
    """The negative control: at the bound the sum is right, one step further the centre lift is wrong by 2³²."""
    scale = float((2**31 - 1) // 7)
    layout = Layout(vectors=(one(bound=1.0, scale=scale),), parties=7)
    total = layout.encode({"update": [1.0, -1.0, 0.0, 1.0]}) * np.uint32(7)
    assert layout.sums(total)["update"].tolist() == [7 * int(scale), -7 * int(scale), 0, 7 * int(scale)]
    with pytest.raises(PlanRefused):
        Layout(vectors=(one(bound=1.0, scale=scale + 1),), parties=7)
    wrapped = np.full(4, int(scale) + 1, dtype=np.uint32) * np.uint32(7)
    assert layout.sums(wrapped)["update"][0] == 7 * (int(scale) + 1) - 2**32


@pytest.mark.parametrize("bits", BITS)
def test_a_sum_that_the_caller_bounds_itself_is_held_to_the_ring(bits: int) -> None:
    half = 2 ** (bits - 1)
    Layout(vectors=(one(scale=1e6, total=half - 1, doubt=1e-6),), parties=10**6, bits=bits)
    with pytest.raises(PlanRefused, match="could wrap around: its sum reaches"):
        Layout(vectors=(one(scale=1e6, total=half),), parties=10**6, bits=bits)


@given(values=hnp.arrays(np.float64, 50, elements=st.floats(-1, 1)), scale=st.floats(1, 1e6))
def test_encoding_moves_a_value_by_at_most_half_a_step(values: Any, scale: float) -> None:
    layout = Layout(vectors=(one(size=50, scale=scale),), parties=1)
    decoded = layout.decode(layout.encode({"update": values}))["update"]
    assert np.abs(decoded - values).max() <= 0.5 / scale * (1 + 1e-9)


@given(data=hnp.arrays(np.float64, (5, 7), elements=st.floats(-2, 2)), kept=st.lists(st.integers(0, 4), unique=True))
def test_the_sum_of_any_subset_is_exact_on_the_grid_whatever_masks_were_in_between(data: Any, kept: list[int]) -> None:
    parts = (one(name="weights", size=4, bound=2.0, scale=2.0**20), one(name="losses", size=3, bound=2.0, scale=64.0))
    layout = Layout(vectors=parts, parties=5)
    total = np.zeros(layout.dimension, dtype=np.uint32)
    for place in kept:
        vector = layout.encode({"weights": data[place, :4], "losses": data[place, 4:]})
        masks.add(vector, bytes([place]) * 32)
        total += vector
    for place in kept:
        masks.add(total, bytes([place]) * 32, sign=-1)
    sums = layout.sums(total)
    assert (sums["weights"] == np.rint(data[kept, :4] * 2.0**20).sum(axis=0)).all()
    assert (sums["losses"] == np.rint(data[kept, 4:] * 64.0).sum(axis=0)).all()


# ------------------------------------------------------------------------------------------------ weighted sums


def test_a_weighted_mean_is_that_of_the_values_to_the_precision_of_the_grid() -> None:
    generator = np.random.default_rng(0)
    values, weights = generator.uniform(-1, 1, (9, 4)), generator.uniform(0, 30, 9)
    layout = Layout(vectors=(one(scale=2.0**18),), parties=9, heaviest=30.0, weight_scale=2.0**16)
    total = np.zeros(layout.dimension, dtype=np.uint32)
    for row, weight in zip(values, weights, strict=True):
        total += layout.encode({"update": row}, weight=weight)
    assert layout.decode(total)["weight"][0] == pytest.approx(weights.sum(), abs=9 / 2**17)
    assert layout.mean(total)["update"] == pytest.approx(np.average(values, axis=0, weights=weights), abs=1e-4)


def test_a_weight_counts_in_the_proof() -> None:
    Layout(vectors=(one(scale=2.0**20),), parties=100)
    with pytest.raises(PlanRefused, match="wrap around"):
        Layout(vectors=(one(scale=2.0**20),), parties=100, heaviest=100.0)


@pytest.mark.parametrize("weight", [None, -1.0, 31.0, math.nan])
def test_a_weight_that_is_missing_negative_or_too_heavy_is_refused(weight: float | None) -> None:
    layout = Layout(vectors=(one(),), parties=2, heaviest=30.0)
    with pytest.raises(InvalidParameter, match="weight"):
        layout.encode({"update": np.zeros(4)}, weight=weight)


def test_a_layout_without_weights_refuses_one_and_nothing_is_divided_by_zero() -> None:
    with pytest.raises(InvalidParameter, match="no place"):
        Layout(vectors=(one(),), parties=2).encode({"update": np.zeros(4)}, weight=1.0)
    layout = Layout(vectors=(one(),), parties=2, heaviest=30.0)
    with pytest.raises(InvalidParameter, match="divide"):
        layout.mean(layout.encode({"update": np.zeros(4)}, weight=0.0))


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "values",
    [
        [0.0, math.nan, 0.0, 0.0],
        [0.0, math.inf, 0.0, 0.0],
        [0.0, -math.inf, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [[0.0, 0.0, 0.0, 0.0]],
        [0.0, 1.02, 0.0, 0.0],
        [1j, 0, 0, 0],
        ["a", "b", "c", "d"],
        [True, False, True, False],
    ],
)
def test_values_that_are_not_finite_of_another_shape_or_kind_or_above_their_bound_are_refused(values: Any) -> None:
    with pytest.raises(InvalidParameter, match="update"):
        Layout(vectors=(one(),), parties=2).encode({"update": values})


@pytest.mark.parametrize("values", [{}, {"other": np.zeros(4)}, {"update": np.zeros(4), "other": np.zeros(4)}])
def test_missing_and_unknown_parts_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="exactly the parts"):
        Layout(vectors=(one(),), parties=2).encode(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0), ("size", 2.5), ("bound", 0.0), ("bound", math.nan), ("bound", -1.0), ("scale", 0.0),
        ("scale", math.inf), ("noise_tail", -1), ("total", 0), ("doubt", -0.1), ("doubt", 1.0), ("name", ""),
    ],
)  # fmt: skip
def test_parts_outside_their_domain_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=field):
        one(**{field: value})


@pytest.mark.parametrize("layout", [{"vectors": ()}, {"vectors": (one(), one())}, {"bits": 31}, {"parties": 0}])
def test_layouts_without_parts_with_one_name_twice_or_of_another_ring_are_refused(layout: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        Layout(**{"vectors": (one(),), "parties": 2, **layout})


@pytest.mark.parametrize("numbers", [[101, 0, 0, 0], [0, -101, 0, 0], [0.5, 0, 0, 0], [math.nan, 0, 0, 0]])
def test_packed_numbers_above_the_bound_or_not_whole_are_refused(numbers: list[float]) -> None:
    layout = Layout(vectors=(one(),), parties=2)
    assert layout.sums(layout.pack({"update": [100, -100, 0, 1]}))["update"].tolist() == [100, -100, 0, 1]
    with pytest.raises(InvalidParameter, match="update"):
        layout.pack({"update": numbers})


def test_a_total_of_another_length_or_type_is_refused() -> None:
    layout = Layout(vectors=(one(),), parties=2)
    for total in (np.zeros(5, dtype=np.uint32), np.zeros(4, dtype=np.int64)):
        with pytest.raises(InvalidParameter, match="total"):
            layout.sums(total)  # type: ignore[arg-type]


def test_any_change_of_a_layout_changes_its_encoding() -> None:
    base: dict[str, Any] = {"vectors": (one(),), "parties": 2}
    changes: list[dict[str, Any]] = [
        {}, {"vectors": (one(scale=99.0),)}, {"vectors": (one(name="x"),)}, {"parties": 3}, {"bits": 24},
        {"heaviest": 2.0}, {"vectors": (one(rotated=True),)},
    ]  # fmt: skip
    assert len({Layout(**(base | change)).to_bytes() for change in changes}) == len(changes)


# -------------------------------------------------------------------------------------------------------- rotation


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 100, 1000, 4096])
def test_the_rotation_is_the_hadamard_matrix_with_signs_and_undoes_itself(size: int) -> None:
    from scipy.linalg import hadamard

    vector = np.random.default_rng(size).normal(size=size)
    turned = rotation.rotate(vector, seed=SEED)
    signs = rotation._signs(SEED, size)
    length = rotation.pad_to_power(size)
    expected = hadamard(length)[:, :size] @ (signs * vector) / math.sqrt(length)
    assert turned == pytest.approx(expected, abs=1e-12)
    assert rotation.rotate_back(turned, size, seed=SEED) == pytest.approx(vector, abs=1e-12)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector))


def test_the_signs_are_fair_coins_of_the_seed() -> None:
    signs = rotation._signs(SEED, 100_000)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 5 / math.sqrt(100_000)
    assert (rotation._signs(SEED, 99) == signs[:99]).all()
    assert (rotation._signs(bytes(32), 100_000) != signs).mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("shape", ["one coordinate", "flat", "random"])
def test_rotated_coordinates_stay_below_hoeffdings_bound(shape: str) -> None:
    """With doubt 0.01 at most one in a hundred may exceed it; the bound for 2⁻⁴⁰ is never reached."""
    size = 1024
    vector = {
        "one coordinate": np.eye(1, size)[0],
        "flat": np.ones(size),
        "random": np.random.default_rng(1).normal(size=size),
    }[shape]
    vector = vector / np.linalg.norm(vector)
    largest = np.array([np.abs(rotation.rotate(vector, seed=place.to_bytes(32, "big"))).max() for place in range(300)])
    assert (largest > rotation.bound_largest(size, 0.01)).mean() <= 0.04
    assert largest.max() < rotation.bound_largest(size, CUT)


@pytest.mark.parametrize("bits", BITS)
def test_rotated_sums_come_back_to_the_precision_of_the_grid_in_every_ring(bits: int) -> None:
    size, parties = 3000, 20
    generator = np.random.default_rng(bits)
    updates = generator.normal(size=(parties, size)) ** 3
    updates /= np.linalg.norm(updates, axis=1)[:, None]
    room = ((2 ** (bits - 1) - 1) // parties - 1) / rotation.bound_largest(size, CUT)
    part = one(size=size, bound=1.0, scale=room, rotated=True)
    layout = Layout(vectors=(part, one(name="count", size=1, bound=1.0, scale=1.0)), parties=parties, bits=bits)
    assert layout.dimension == 4097
    total = np.zeros(layout.dimension, dtype=np.uint32)
    for row in updates:
        vector = layout.encode({"update": row, "count": [1.0]}, seed=SEED)
        total += from_wire(to_wire(vector, bits=bits), size=layout.dimension, bits=bits)
    decoded = layout.decode(total, seed=SEED)
    assert decoded["count"].tolist() == [parties]
    error = np.linalg.norm(decoded["update"] - updates.sum(axis=0))
    assert error <= parties * math.sqrt(4096) / (2 * room)
    assert layout.doubt == parties * CUT


def test_in_sixteen_bits_rotation_makes_the_grid_many_times_finer() -> None:
    """A thousand coordinates, twenty parties: without it a step is the whole norm over 1,638 steps."""
    plain, turned = 1638.0, 1637 / rotation.bound_largest(2**16, CUT)
    Layout(vectors=(one(size=2**16, scale=plain),), parties=20, bits=16)
    Layout(vectors=(one(size=2**16, scale=turned, rotated=True),), parties=20, bits=16)
    assert turned > 20 * plain
    with pytest.raises(PlanRefused):
        Layout(vectors=(one(size=2**16, scale=turned),), parties=20, bits=16)


def test_a_rotated_part_needs_the_seed_and_a_norm_within_its_bound() -> None:
    layout = Layout(vectors=(one(size=100, rotated=True),), parties=2)
    with pytest.raises(InvalidParameter, match="seed"):
        layout.encode({"update": np.zeros(100)})
    with pytest.raises(InvalidParameter, match="no norm of at most 1"):
        layout.encode({"update": np.full(100, 0.11)}, seed=SEED)


# ------------------------------------------------------------------------------------------------------------ wire


@given(words=hnp.arrays(np.uint32, st.integers(0, 33)), bits=st.sampled_from(BITS))
def test_the_low_bits_travel_without_gaps_and_come_back(words: Any, bits: int) -> None:
    raw = to_wire(words, bits=bits)
    assert len(raw) == wire_size(words.size, bits=bits)
    assert len(raw) * 8 - words.size * bits in (0, 20)
    back = from_wire(raw, size=words.size, bits=bits)
    assert (back == words & np.uint32(2**bits - 1)).all()
    with pytest.raises(InvalidParameter, match="bytes"):
        from_wire(raw + b"\0", size=words.size, bits=bits)
