"""What the server has seen or holds at any moment contains no party's vector and no party's secret."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quietsum.secagg import keys, masks, messages, party as party_module, shamir
from quietsum.secagg.messages import SERVER, KeyShare, Step
from quietsum.secagg.outcomes import Refused, SessionOutcome
from quietsum.secagg.party import Party, sign_of
from secagg.sessions import MODEL, Played, answer, complete, drop, identity_of, names_of, play, session, sparse

NAMES = names_of(5)
PARAMETERS = complete(5, threshold=3)


def reachable(root: object) -> Iterator[object]:
    """Every object that can be reached from ``root``, types and modules left out; of a function, what it encloses."""
    seen: set[int] = set()
    queue = [root]
    while queue:
        here = queue.pop()
        if id(here) in seen or isinstance(here, type | types.ModuleType | types.CodeType):
            continue
        seen.add(id(here))
        if isinstance(here, types.FunctionType):
            queue.extend([here.__closure__, here.__defaults__, here.__kwdefaults__, here.__dict__])
            continue
        yield here
        queue.extend(gc.get_referents(here))
        if isinstance(here, memoryview) and here.obj is not None:
            queue.append(here.obj)


def contents(root: object) -> Iterator[bytes]:
    """The bytes of everything that can be reached and that holds bytes."""
    for each in reachable(root):
        if isinstance(each, bytes | bytearray):
            yield bytes(each)
        elif isinstance(each, np.ndarray) and each.dtype != object:
            yield np.ascontiguousarray(each).tobytes()
        elif isinstance(each, str):
            yield each.encode()


def holds(root: object, needles: dict[str, bytes]) -> set[str]:
    """Which of ``needles`` are found in what ``root`` holds."""
    return {name for blob in contents(root) for name, needle in needles.items() if needle in blob}


def secrets_of(party: Party) -> dict[str, bytes]:
    """The party's own secrets of the session, raw and in hexadecimal."""
    own = party._secrets
    assert own is not None
    raw = {
        "mask key": own.mask.private_to_share(),
        "channel key": own.channel.private_to_share(),
        "seed": own.seed,
    } | {f"key with {peer}": key for peer, key in own.channel_keys.items()}
    return {f"{party.name}: {what}": value for what, value in raw.items()}


def vectors_of(played: Played) -> dict[str, bytes]:
    """Every party's vector, and the plain sum of each proper subset of two or more."""
    found = {f"vector of {name}": vector.tobytes() for name, vector in played.inputs.items()}
    names = list(played.inputs)
    for size in range(2, len(names)):
        for some in itertools.combinations(names, size):
            total = np.sum([played.inputs[name] for name in some], axis=0, dtype=np.uint32)
            found[f"sum of {some}"] = total.tobytes()
    return found


@pytest.mark.parametrize("missing", [{}, {NAMES[2]: Step.MASKED}, {NAMES[0]: Step.SHARE, NAMES[4]: Step.AGREE}])
def test_no_object_of_the_server_and_no_message_holds_a_vector_or_a_secret(missing: dict[str, Step]) -> None:
    played = session(PARAMETERS)
    secrets: dict[str, bytes] = {}
    line = drop(missing)
    forbidden = vectors_of(played)

    def look(step: Step, party: str, data: bytes) -> bytes | None:
        if step in (Step.ADVERTISE, Step.SHARE):
            secrets.update(secrets_of(played.parties[party]))
        sent = line(step, party, data)
        assert not {name for name, needle in (forbidden | secrets).items() if needle in data}
        return sent

    def server_is_clean(step: Step) -> None:
        assert holds(played.server, secrets) == set()
        assert holds(played.server, forbidden) == set()

    play(played, reply=look, before_advance=server_is_clean)
    assert played.exact()
    survivors = set(played.server.survivors)
    released = {f"sum of {tuple(sorted(survivors))}"}
    assert holds(played.server, {name: raw for name, raw in forbidden.items() if name not in released}) == set()
    assert holds(played.server, secrets) == set()
    total = played.server.total().tobytes()
    assert holds(played.server, {"total": total}) == {"total"}  # the walk does find what is there
    assert len(secrets) > 20


def test_the_walk_finds_a_vector_or_a_secret_wherever_it_is_hidden() -> None:
    """The negative control of the test above: planted in a closure, a slot, a view, a nested dict, it is found."""
    played = play(session(PARAMETERS), until=Step.SHARE)
    needle = {"seed": played.parties[NAMES[0]]._secrets.seed}  # type: ignore[union-attr]
    places: list[Callable[[bytes], Any]] = [
        lambda raw: {"deep": [({"x": raw},)]},
        lambda raw: memoryview(b"..." + raw),
        lambda raw: np.frombuffer(raw + bytes(4), dtype=np.uint32),
        lambda raw: types.SimpleNamespace(kept=bytearray(raw)),
        lambda raw: lambda: raw,
    ]
    for place in places:
        assert holds(played.server, needle) == set()
        played.server.__dict__["planted"] = place(needle["seed"])
        assert holds(played.server, needle) == {"seed"}
        del played.server.__dict__["planted"]


def test_a_party_keeps_no_secret_after_its_vector_is_out_and_no_share_after_the_end() -> None:
    played = session(PARAMETERS)
    secrets: dict[str, dict[str, bytes]] = {}

    def look(step: Step, party: str, data: bytes) -> bytes:
        here = played.parties[party]
        if step is Step.SHARE:
            secrets[party] = secrets_of(here)
        if step >= Step.MASKED:
            assert here._secrets is None
            assert holds(here, secrets[party]) == set()
            assert holds(here, {"vector": played.inputs[party].tobytes()}) == set()
        return data

    play(played, reply=look)
    assert played.exact()
    for party in played.parties.values():
        assert not party._peers
        with pytest.raises(TypeError):
            party.__reduce__()


def words(data: bytes) -> NDArray[np.uint32]:
    """The vector of a MASKED answer."""
    payload = messages.read_frame(data, largest=1 << 24).payload
    return np.frombuffer(payload, dtype="<u4").copy()


def masked(played: Played) -> dict[str, NDArray[np.uint32]]:
    return {sender: words(data) for step, sender, _, data in played.messages if step is Step.MASKED}


def uniform(values: NDArray[np.uint32]) -> bool:
    """χ² of the bytes, and of the bits, at 10⁻⁶."""
    raw = values.view(np.uint8)
    bits = np.unpackbits(raw.reshape(-1, 4), axis=1).sum(axis=0)
    by_bit = (((bits - values.size / 2) ** 2) / (values.size / 4)).sum()
    bytes_fit = stats.chisquare(np.bincount(raw, minlength=256)).pvalue
    return bool(bytes_fit > 1e-6 and stats.chi2.sf(by_bit, 32) > 1e-6)


SIZE = 20_000


@pytest.mark.parametrize("parameters", [PARAMETERS, sparse(12, neighbours=4, threshold=2)], ids=["complete", "sparse"])
def test_a_masked_vector_of_zeros_is_uniform(parameters: Any) -> None:
    zeros = {name: np.zeros(SIZE, dtype=np.uint32) for name in names_of(parameters.parties)}
    played = session(parameters, inputs=zeros, dimension=SIZE)
    partial: list[NDArray[np.uint32]] = []

    def look(step: Step) -> None:
        if step is Step.MASKED:
            partial.append(played.server._sum.copy())  # type: ignore[union-attr]

    play(played, before_advance=look)
    assert played.exact()
    for name, vector in masked(played).items():
        assert uniform(vector), name
    assert uniform(partial[0])  # what the server holds before unmasking
    assert not uniform(zeros[names_of(1)[0]])  # the test can fail
    assert not uniform(np.random.default_rng(3).integers(0, 2**31, SIZE, dtype=np.uint32))


def test_two_sessions_with_one_input_have_nothing_in_common() -> None:
    vector = np.arange(SIZE, dtype=np.uint32)
    inputs = dict.fromkeys(NAMES, vector)
    first = masked(play(session(PARAMETERS, inputs=inputs, dimension=SIZE)))
    changes: tuple[dict[str, Any], ...] = ({}, {"attempt": 1}, {"round": 4})
    for changed in changes:
        second = masked(play(session(PARAMETERS, inputs=inputs, dimension=SIZE, **changed)))
        for name in NAMES:
            assert uniform(first[name] - second[name])
            assert uniform(first[name] ^ second[name])
            assert abs(np.corrcoef(first[name], second[name])[0, 1]) < 6 / np.sqrt(SIZE)
    assert not uniform(first[NAMES[0]] - first[NAMES[0]])


# ------------------------------------------------------------------------- attacks of a server that keeps everything


def public_keys(played: Played) -> list[bytes]:
    """All X25519 public keys that were sent in a session."""
    sent = [data for step, _, _, data in played.messages if step is Step.ADVERTISE]
    read = [messages.read_keys(messages.read_frame(data, largest=1 << 20).payload) for data in sent]
    return [key for each in read for key in (each.mask, each.channel)]


def test_no_key_of_one_session_comes_back_in_another() -> None:
    rounds = [play(session(PARAMETERS, round=number)) for number in range(3)]
    seen = [key for played in rounds for key in public_keys(played)]
    assert len(seen) == 30
    assert len(set(seen)) == len(seen)


def stripped(played: Played, victim: str, secret: bytes, vector: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """``victim``'s masked vector without its pairwise masks, by its mask key."""
    server, left = played.server, vector.copy()
    pair = keys.KeyPair.rebuilt(secret)
    for peer in server._graph[victim]:
        if peer in server._sharing:
            shared = keys.agree(pair, server._roster[peer].mask, session=server._session, role="mask")
            masks.add(left, shared, sign=-1 if sign_of(victim, peer) == 1 else 1)
    return left


def key_from_shares(played: Played, victim: str) -> bytes:
    """``victim``'s mask key from the shares in the UNMASK answers of a session in which it dropped out."""
    told: dict[int, Any] = {}
    for step, sender, _, data in played.messages:
        if step is Step.UNMASK:
            shares = messages.read_unmask(messages.read_frame(data, largest=1 << 20).payload, NAMES)
            assert isinstance(shares[victim], KeyShare)
            told[NAMES.index(sender) + 1] = shares[victim].limbs
    return shamir.rebuild(list(told), np.stack(list(told.values())), threshold=3)


def test_a_vector_that_comes_late_stays_hidden_although_its_key_was_rebuilt() -> None:
    """The reason for self-masks: declared dropped, its pairwise masks are known, and then the vector arrives."""
    victim = NAMES[2]
    played = play(session(PARAMETERS), reply=drop({victim: Step.MASKED}))
    assert played.outcome is SessionOutcome.DONE
    late = masked(played)[victim]
    opened = stripped(played, victim, key_from_shares(played, victim), late)
    assert not np.array_equal(opened, played.inputs[victim])


def test_a_key_rebuilt_in_one_round_opens_no_other_round() -> None:
    """In round 1 the victim's seed becomes known, in round 2 its key: the two together must not open round 1."""
    victim = NAMES[2]
    one = play(session(PARAMETERS, round=1))
    two = play(session(PARAMETERS, round=2), reply=drop({victim: Step.MASKED}))
    secret = key_from_shares(two, victim)
    assert one.exact() and two.exact()
    told = {
        NAMES.index(sender) + 1: messages.read_unmask(messages.read_frame(data, largest=1 << 20).payload, NAMES)[
            victim
        ].limbs
        for step, sender, _, data in one.messages
        if step is Step.UNMASK
    }
    seed = shamir.rebuild(list(told), np.stack(list(told.values())), threshold=3)
    assert messages.commitment(one.server._session, victim, seed) == one.server._commitments[victim]
    opened = stripped(one, victim, secret, masked(one)[victim])
    masks.add(opened, keys.derive(seed, session=one.server._session, role="self"), sign=-1)
    assert not np.array_equal(opened, one.inputs[victim])


def test_all_bits_of_a_mask_key_count() -> None:
    """Were masks drawn from 32-bit seeds, two of 3 · 2¹⁶ random keys would make the same mask, in 99 cases of 100."""
    count = 3 << 16
    raw = np.random.default_rng(5).bytes(32 * count)
    heads = np.zeros((count, 2), dtype=np.uint32)
    for place in range(count):
        masks.add(heads[place], raw[32 * place : 32 * place + 32])
    assert len(np.unique(heads.view(np.uint64))) == count


def test_the_model_is_in_every_mask() -> None:
    """With the same keys all over, another model's hash alone gives other masks, other signatures, another session."""
    played = play(session(PARAMETERS))
    terms, roster, opened = played.server.terms, played.server._roster, played.server._opening
    other = dataclasses.replace(terms, model="e5" * 32)
    assert terms.model == MODEL
    mine = messages.session(terms, opened, roster)
    assert mine == played.server._session
    assert messages.session(other, opened, roster) != mine
    pair, peer = keys.KeyPair.fresh(), keys.KeyPair.fresh()
    both = {
        keys.agree(pair, peer.public, session=name, role="mask")
        for name in (mine, messages.session(other, opened, roster))
    }
    assert len(both) == 2


def test_sealed_shares_of_another_session_are_not_accepted_even_under_the_same_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were X25519 pairs ever repeated, a share sealed in one session would still be of no use in the other."""
    kept: dict[int, tuple[keys.KeyPair, keys.KeyPair]] = {}
    turn, real = itertools.count(), party_module._Secrets

    def again() -> Any:
        own = real()
        own.mask, own.channel = kept.setdefault(next(turn) % len(NAMES), (own.mask, own.channel))
        return own

    monkeypatch.setattr(party_module, "_Secrets", again)

    def run(replay: dict[str, dict[str, bytes]] | None, **changed: Any) -> tuple[Played, dict[str, dict[str, bytes]]]:
        played = session(PARAMETERS, **changed)
        sealed: dict[str, dict[str, bytes]] = {}
        pending = played.server.open()
        while pending:
            step = played.server.step
            assert step is not None
            for name, data in pending.items():
                if step is Step.MASKED:
                    frame = messages.read_frame(data, largest=1 << 20)
                    members, mine = messages.read_shares(frame.payload, NAMES)
                    sealed[name] = mine
                    if replay is not None:
                        data = messages.write_frame(
                            Step.SHARES,
                            frame.session,
                            sender=SERVER,
                            receiver=name,
                            payload=messages.write_shares(members, replay[name], NAMES),
                            identity=identity_of("the server"),
                        )
                try:
                    said = answer(played, name, step, data)
                except Refused:
                    continue
                played.server.take(name, said)
            if step is Step.MASKED:
                played.__dict__["held"] = {
                    name: {peer for peer, one in party._peers.items() if one.both is not None}
                    for name, party in played.parties.items()
                }
            pending = played.server.advance()
        return played, sealed

    first, sealed = run(None, attempt=0)
    assert first.exact()
    assert first.__dict__["held"] == {name: set(NAMES) for name in NAMES}
    second, _ = run(sealed, attempt=1)
    assert public_keys_of(second) == public_keys_of(first)  # the keys are indeed the same
    assert second.__dict__["held"] == {name: {name} for name in NAMES}  # its own alone
    assert second.outcome is SessionOutcome.TOO_FEW_UNMASKED


def public_keys_of(played: Played) -> set[bytes]:
    return {key for each in played.server._roster.values() for key in (each.mask, each.channel)}
