"""The shuffler: every order equally likely, nothing of the senders left, and a central ε for a declared n."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quietsum.errors import InvalidParameter, QuietsumError, Unreadable
from quietsum.mechanisms.local import Header, LocalProtocol, Reports, make_protocol, read_reports, reports_file
from quietsum.mechanisms.local.shuffler import blanket_of, permute, shuffle_protocol, shuffle_reports
from quietsum.mechanisms.rng import RandomSource, system_randomness
from quietsum.mechanisms.shuffle_model import kary_blanket, shuffled_epsilon

ANSWERS = ["never", "monthly", "weekly", "daily"]


def survey(name: str = "k-rr", epsilon: float = 1.0) -> LocalProtocol:
    return make_protocol(name, ANSWERS, epsilon)


def write(path: Path, protocol: LocalProtocol, answers: list[str], note: str = "ward 3, Tuesday") -> Path:
    with reports_file(path, Header(protocol=protocol, note=note, version="0.1.0")) as writer:
        writer.add(protocol.privatize(answers))
    return path


def read(path: Path) -> Reports:
    with read_reports(path) as reader:
        return np.concatenate(list(reader))


def files(folder: Path, name: str = "k-rr", suffix: str = ".csv") -> list[Path]:
    made = survey(name)
    return [write(folder / f"site-{site}{suffix}", made, ANSWERS * 10) for site in range(3)]


@pytest.mark.parametrize("name", ["k-rr", "oue", "olh", "hadamard", "rappor", "cms", "hcms"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_same_reports_come_out_in_another_order(tmp_path: Path, name: str, suffix: str) -> None:
    paths = files(tmp_path, name, suffix)
    bought = shuffle_reports(paths, tmp_path / f"shuffled{suffix}", delta=1e-5).bought
    before, after = np.concatenate([read(path) for path in paths]), read(tmp_path / f"shuffled{suffix}")
    assert sorted(row.tobytes() for row in before) == sorted(row.tobytes() for row in after)
    assert before.tobytes() != after.tobytes()
    assert bought.n == 120 and bought.epsilon < bought.local_epsilon


def test_an_estimate_from_shuffled_reports_is_the_same_number(tmp_path: Path) -> None:
    paths = files(tmp_path)
    shuffle_reports(paths, tmp_path / "out.csv", delta=1e-5)
    made = survey()
    before = made.estimate(np.concatenate([read(path) for path in paths]))
    assert before.values.tolist() == made.estimate(read(tmp_path / "out.csv")).values.tolist()


def test_notes_versions_and_file_names_are_gone(tmp_path: Path) -> None:
    shuffle_reports(files(tmp_path), tmp_path / "out.csv", delta=1e-5)
    text = (tmp_path / "out.csv").read_text()
    for trace in ("ward", "Tuesday", "0.1.0", "site"):
        assert trace not in text


class Order:
    """A source whose permutations are as given: what a broken shuffler would use."""

    def __init__(self, permute: Callable[[int], NDArray[np.int64]]) -> None:
        self.permutation = permute


def orders_of(source: RandomSource | None) -> NDArray[np.int64]:
    """How often each order of three distinct reports came out."""
    three = np.array([(place,) for place in range(3)], dtype=survey().layout)
    seen = Counter(tuple(permute(three, source)["answer"].tolist()) for _ in range(3000))
    return np.array([*seen.values(), *[0] * (6 - len(seen))])


def test_every_order_is_equally_likely_and_rotations_alone_are_caught() -> None:
    assert stats.chisquare(orders_of(system_randomness())).pvalue > 1e-4
    rng = np.random.default_rng(3)
    rotations = Order(lambda count: np.roll(np.arange(count), int(rng.integers(count))))
    # Negative control: every report is equally likely in every place, but not every order comes.
    assert stats.chisquare(orders_of(rotations)).pvalue < 1e-6  # type: ignore[arg-type]


def test_the_central_epsilon_is_stated_for_the_declared_number(tmp_path: Path) -> None:
    paths = files(tmp_path)
    bought = shuffle_reports(paths, tmp_path / "out.csv", delta=1e-5, declared=100, colluders=20).bought
    assert bought.n == 100
    assert bought.epsilon == pytest.approx(shuffled_epsilon(epsilon0=1.0, n=80, delta=1e-5, categories=4).epsilon)
    with pytest.raises(InvalidParameter, match="only 120 reports came"):
        shuffle_reports(paths, tmp_path / "none.csv", delta=1e-5, declared=121)
    assert not (tmp_path / "none.csv").exists()


def test_two_level_protocols_have_the_blanket_of_their_chances() -> None:
    growth = math.e
    assert blanket_of(survey()) == pytest.approx(kary_blanket(epsilon0=1.0, categories=4))
    assert blanket_of(survey("oue")) == pytest.approx((growth + 1) / (2 * growth))
    assert blanket_of(survey("sue")) == pytest.approx(math.exp(-0.5))
    assert blanket_of(survey("olh")) == pytest.approx(kary_blanket(epsilon0=1.0, categories=4))
    assert blanket_of(survey("hadamard")) is None
    general = shuffled_epsilon(epsilon0=1.0, n=200, delta=1e-6).epsilon
    assert shuffle_protocol(survey("hadamard"), n=200, delta=1e-6).epsilon == general
    assert shuffle_protocol(survey("oue"), n=200, delta=1e-6).epsilon < general


def test_a_kept_permanent_response_is_priced_at_its_permanent_epsilon() -> None:
    kept = make_protocol("rappor", ANSWERS, 1.0, permanent_epsilon=3.0)
    assert shuffle_protocol(kept, n=200, delta=1e-6).local_epsilon == 3.0


def test_what_cannot_be_shuffled_leaves_no_file(tmp_path: Path) -> None:
    one, two, three = files(tmp_path)
    other = write(tmp_path / "other.csv", survey(epsilon=2.0), ANSWERS)
    cut = tmp_path / "cut.csv"
    cut.write_bytes(one.read_bytes()[:-20])
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    out = tmp_path / "out.csv"
    link = tmp_path / "link.csv"
    link.symlink_to(one)
    for given, options, error, match in (
        ([one, other], {}, InvalidParameter, "another survey: ε 2.0 instead of 1.0"),
        ([one, one], {}, InvalidParameter, "same file"),
        ([one, link], {}, InvalidParameter, "same file"),
        ([one, cut], {}, Unreadable, "cut"),
        ([empty], {}, Unreadable, "empty"),
        ([], {}, InvalidParameter, "nothing to shuffle"),
        ([one, two], {"most_bytes": 1000}, InvalidParameter, "permuted in memory"),
        ([one], {"delta": 0.0}, InvalidParameter, "delta"),
        ([one], {"colluders": 40}, InvalidParameter, "leaves no other"),
    ):
        with pytest.raises(error, match=match):
            shuffle_reports(given, out, **{"delta": 1e-5, **options})  # type: ignore[arg-type]
        assert not out.exists()
    before = three.read_bytes()
    with pytest.raises(InvalidParameter, match="is one of the files"):
        shuffle_reports([one, three], three, delta=1e-5)
    assert three.read_bytes() == before
    with pytest.raises(QuietsumError):
        shuffle_reports([one], tmp_path / "out.txt", delta=1e-5)


def test_progress_counts_reports_read_and_written(tmp_path: Path) -> None:
    steps: list[int] = []
    shuffle_reports(files(tmp_path), tmp_path / "out.csv", delta=1e-5, progress=steps.append)
    assert sum(steps) == 240
