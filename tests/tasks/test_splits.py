"""Every record lies at one party, by a rule that everyone can repeat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quietsum.errors import InvalidParameter
from quietsum.tasks.checks import one_site_each
from quietsum.tasks.splits import Partition, Split, by_dirichlet, gather, iid, natural, parse

IID_OF_TWELVE = [2, 2, 2, 0, 0, 1, 0, 1, 1, 2, 1, 0]


def labels(count: int = 1000, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(3).integers(0, classes, count)


def everywhere_once(found: Partition, size: int) -> bool:
    every = np.concatenate([found.records(name) for name in found.names])
    return sorted(every.tolist()) == list(range(size)) and found.sizes.sum() == size


# ----------------------------------------------------------------------------------------------------- words


def test_a_split_is_one_of_three() -> None:
    assert parse("natural") == Split(kind="natural") and parse("iid") == Split(kind="iid")
    assert parse("dirichlet(0.5)") == parse("dirichlet( 5e-1 )") == Split(kind="dirichlet", alpha=0.5)


@pytest.mark.parametrize("text", ["", "IID", "dirichlet", "dirichlet()", "dirichlet(x)", "dirichlet(1", "by label", 3])
def test_another_word_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"dirichlet\(0.5\)"):
        parse(text)


@pytest.mark.parametrize("alpha", ["0", "-1", "nan", "inf"])
def test_a_concentration_is_a_positive_number(alpha: str) -> None:
    with pytest.raises(InvalidParameter):
        parse(f"dirichlet({alpha})")


# ------------------------------------------------------------------------------------------------------- iid


@given(st.integers(1, 300), st.integers(1, 40))
def test_iid_clients_have_every_record_once_and_are_alike_in_size(size: int, count: int) -> None:
    if count > size:
        with pytest.raises(InvalidParameter, match="more clients than"):
            iid(size, count)
        return
    found = iid(size, count)
    assert everywhere_once(found, size) and len(found.names) == count
    assert found.sizes.max() - found.sizes.min() <= 1


def test_iid_is_the_same_for_everyone_for_ever() -> None:
    """These numbers are written down: a change of the rule would deal every federation anew."""
    assert iid(12, 3, salt="digits").party.tolist() == iid(12, 3, salt="digits").party.tolist()
    assert iid(12, 3, salt="digits").party.tolist() == IID_OF_TWELVE
    assert iid(12, 3, salt="mnist").party.tolist() != IID_OF_TWELVE


def test_iid_clients_see_every_label() -> None:
    """A rule that went by the order of the file would fail here: labels come sorted."""
    sorted_labels = np.sort(labels())
    found = iid(1000, 10)
    for name in found.names:
        shares = np.bincount(sorted_labels[found.records(name)], minlength=10) / 100
        assert shares.min() > 0.02 and shares.max() < 0.25
    assert len(np.unique(sorted_labels[:100])) < 3, "the control: a block of the file has hardly two labels"


def test_people_stay_together_in_iid_clients() -> None:
    people = np.random.default_rng(1).integers(0, 60, 400)
    found = gather(people, 7, what="people")
    assert everywhere_once(found, 400)
    one_site_each(people, found.party)
    per_client = [len(np.unique(people[found.records(name)])) for name in found.names]
    assert max(per_client) - min(per_client) <= 1
    with pytest.raises(InvalidParameter, match="pays twice"):
        one_site_each(people, iid(400, 7).party)  # the control: dealt out record by record, they do not
    with pytest.raises(InvalidParameter, match="whose records stay together"):
        gather(people, 61, what="people")


# --------------------------------------------------------------------------------------------------- natural


def test_natural_sites_are_the_records_own() -> None:
    found = natural(["south", "north", "south", "east"])
    assert found.names == ("east", "north", "south") and found.sizes.tolist() == [1, 1, 2]
    assert found.records("south").tolist() == [0, 2] and str(found) == "Partition(3 parties)"
    with pytest.raises(InvalidParameter, match="there are east, north, south"):
        found.records("west")
    with pytest.raises(InvalidParameter, match="names no site"):
        natural([])


@pytest.mark.parametrize("count", [1, 2, 7, 199, 200])
def test_gathered_sites_stay_whole_and_leave_no_client_empty(count: int) -> None:
    sites = [f"card-{number % 200}" for number in range(1000)]
    found = gather(sites, count)
    assert everywhere_once(found, 1000) and found.names[0] == "client-0001" and len(found.names) == count
    one_site_each(np.array(sites), found.party)
    assert found.sizes.max() - found.sizes.min() <= 5
    assert gather(sites[::-1], count).party.tolist() == found.party[::-1].tolist(), "the order of records is nothing"


def test_there_are_no_more_clients_than_sites() -> None:
    with pytest.raises(InvalidParameter, match="more clients than the 2 sites"):
        gather(["a", "b"], 3)


# ------------------------------------------------------------------------------------------------- dirichlet


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.1, 1.0, 100.0, 1e6])
@pytest.mark.parametrize("count", [1, 7, 100, 1000])
def test_dirichlet_clients_have_every_record_once_and_are_alike_in_size(alpha: float, count: int) -> None:
    found = by_dirichlet(labels(), count, alpha)
    assert everywhere_once(found, 1000) and found.sizes.max() - found.sizes.min() <= 1


def evenness(alpha: float) -> float:
    """How many labels a client has, in effect: 1 / Σ share², averaged over clients."""
    some = labels(4000)
    found = by_dirichlet(some, 40, alpha)
    counts = np.array([np.bincount(some[found.records(name)], minlength=10) for name in found.names])
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float((1 / (shares**2).sum(axis=1)).mean())


def test_a_small_concentration_gives_one_label_each_and_a_large_one_all() -> None:
    found = [evenness(alpha) for alpha in (0.001, 0.3, 10.0, 1e4)]
    assert found == sorted(found) and found[0] < 1.8 and found[-1] > 8.5


def test_shares_follow_the_dirichlet_law() -> None:
    """E Σ share² = (1 + Σ weight²/α) / (1 + α) for Dir(weights), α their sum: 2,000 rows, within 6 errors."""
    from quietsum.tasks.splits import _log_gammas

    weights = np.array([0.2, 0.5, 1.3])
    gammas = np.exp(_log_gammas(2000, weights, "test"))
    shares, total = gammas / gammas.sum(axis=1, keepdims=True), weights.sum()
    variance = weights * (total - weights) / (total**2 * (total + 1))
    assert (np.abs(shares.mean(axis=0) - weights / total) < 6 * np.sqrt(variance / 2000)).all()
    squares = (shares**2).sum(axis=1)
    wanted = (weights * (weights + 1)).sum() / (total * (total + 1))
    assert abs(squares.mean() - wanted) < 6 * squares.std() / np.sqrt(2000)
    assert abs(squares.mean() - 1 / 3) > 6 * squares.std() / np.sqrt(2000), "even shares would be seen"


def test_dirichlet_needs_a_label_for_each_record() -> None:
    with pytest.raises(InvalidParameter, match="one per record"):
        by_dirichlet(np.zeros((4, 2), dtype=np.int64), 2, 1.0)
    with pytest.raises(InvalidParameter, match="more clients"):
        by_dirichlet(np.zeros(4, dtype=np.int64), 5, 1.0)


# ------------------------------------------------------------------------------------------------- partitions


@pytest.mark.parametrize("party", [[0, 2], [-1, 0], [[0], [1]]])
def test_a_record_without_a_party_is_refused(party: list[int]) -> None:
    with pytest.raises(InvalidParameter, match="name no party"):
        Partition(names=("a", "b"), party=np.array(party))


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_names_are_there_and_differ(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidParameter, match="empty or repeat"):
        Partition(names=names, party=np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_number_of_clients_is_a_whole_one(count: int) -> None:
    with pytest.raises(InvalidParameter, match="parties"):
        iid(10, count)
