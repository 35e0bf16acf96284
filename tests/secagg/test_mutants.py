"""Broken protocols are caught: each mutant below still runs and still sums, and one named test fails on it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quietsum.secagg import graph, keys, masks, messages, party
from quietsum.secagg.messages import Frame, SessionTerms, Step
from quietsum.secagg.outcomes import Reason
from quietsum.secagg.parameters import Parameters
from quietsum.secagg.party import Demands, Party, PeerState
from quietsum.secagg.server import Server
from secagg import test_faults, test_groups, test_leaks, test_liars, test_lying_server
from secagg.sessions import complete, play, session

Patch = pytest.MonkeyPatch


def reused_key_pair(patch: Patch) -> None:
    """Each party keeps its X25519 pairs from round to round."""
    turn, real = itertools.count(), party._Secrets
    kept: dict[int, Any] = {}

    def made() -> Any:
        fresh = real()
        fresh.mask, fresh.channel = kept.setdefault(next(turn) % 5, (fresh.mask, fresh.channel))
        return fresh

    patch.setattr(party, "_Secrets", made)


def missing_self_mask(patch: Patch) -> None:
    """Pairwise masks only, at the party and at the server alike."""
    marker, real_add, real_derive = bytes(32), masks.add_all, keys.derive
    patch.setattr(
        keys, "derive", lambda seed, *, session, role: real_derive(seed, session=session, role=role) and marker
    )
    patch.setattr(masks, "add_all", lambda into, some: real_add(into, [each for each in some if each[0] != marker]))


def party_that_takes_the_server_s_threshold(patch: Patch) -> None:
    """The server's parameters and floor replace the party's own."""
    real = Party._advertise

    def adopting(self: Party, frame: Frame) -> bytes:
        theirs = messages.read_open(frame.payload, most=100)
        self.terms = SessionTerms(
            run=theirs.run,
            round=theirs.round,
            attempt=theirs.attempt,
            model=theirs.model,
            plan=theirs.plan,
            dimension=theirs.dimension,
            parameters=Parameters.from_dict(theirs.parameters),
            floor=theirs.floor,
        )
        self._policy = Demands(threshold=1, floor=1)
        return real(self, frame)

    patch.setattr(Party, "_advertise", adopting)


def masks_from_a_32_bit_seed(patch: Patch) -> None:
    """The key is folded into 32 bits before it makes a mask."""
    real = masks._keystream

    def folded(key: bytes) -> Any:
        seed = int(np.bitwise_xor.reduce(np.frombuffer(key, dtype="<u4")))
        return real(seed.to_bytes(4, "little") * 8)

    patch.setattr(masks, "_keystream", folded)


def shares_not_bound_to_the_session(patch: Patch) -> None:
    """Neither the channel's key nor the sealing knows the session."""
    agree, seal, unseal = keys.agree, keys.seal, keys.unseal

    def loose(pair: Any, public: bytes, *, session: bytes, role: str) -> bytes:
        return agree(pair, public, session=bytes(32) if role == "channel" else session, role=role)

    patch.setattr(keys, "agree", loose)
    patch.setattr(keys, "seal", lambda *given, session, **names: seal(*given, session=b"", **names))
    patch.setattr(keys, "unseal", lambda *given, session, **names: unseal(*given, session=b"", **names))


def model_not_in_the_session(patch: Patch) -> None:
    real = keys.session_id
    patch.setattr(keys, "session_id", lambda **given: real(**(given | {"model": b""})))


def no_consistency_round(patch: Patch) -> None:
    """Shares are revealed whoever signed whatever."""

    def trusting(self: Party, frame: Frame) -> bytes:
        shares = {name: peer.one for name, peer in self._peers.items() if peer.one is not None}
        return self._reply(Step.UNMASK, messages.write_unmask(shares, self._cohort))

    patch.setattr(Party, "_unmask", trusting)


def party_without_a_floor(patch: Patch) -> None:
    patch.setattr(Party, "_need", property(lambda self: 0))
    patch.setattr(Party, "_require_holders", lambda self, members: None)


def party_that_does_not_look_at_the_graph(patch: Patch) -> None:
    patch.setattr(party, "find_reachable", lambda start, members, near: set(members))


def both_shares_kept(patch: Patch) -> None:
    def keeping(self: Any, *, survived: bool) -> None:
        self.state = PeerState.ALIVE if survived else PeerState.DROPPED
        self.one = self.both[0 if survived else 1]

    patch.setattr(party._Peer, "settle", keeping)


def secrets_kept_after_masking(patch: Patch) -> None:
    real = Party._mask

    def keeping(self: Party, frame: Frame, vector: Any) -> bytes:
        kept = self._secrets
        said = real(self, frame, vector)
        self._secrets = kept
        return said

    patch.setattr(Party, "_mask", keeping)


def server_that_adds_late_vectors(patch: Patch) -> None:
    real = Server.take

    def generous(self: Server, name: str, data: Any) -> Reason | None:
        reason = real(self, name, data)
        if reason is Reason.LATE and (frame := messages.read_frame(data, largest=1 << 20)).step is Step.MASKED:
            self._take_vector(name, frame)
        return reason

    patch.setattr(Server, "take", generous)


def server_that_adds_duplicates(patch: Patch) -> None:
    real = Server._take

    def forgetful(self: Server, name: str, data: Any) -> None:
        self._answers.pop(name, None)
        self._earlier.clear()
        real(self, name, data)

    patch.setattr(Server, "_take", forgetful)


def server_that_checks_no_rebuilt_secret(patch: Patch) -> None:
    patch.setattr(Server, "_is_of", lambda self, name, secret: True)


def server_that_keeps_the_vectors(patch: Patch) -> None:
    """Stands for any way in which a plain vector comes to lie at the server."""
    real = Server._take_vector

    def hoarding(self: Server, name: str, frame: Frame) -> None:
        real(self, name, frame)
        self.__dict__.setdefault("hoard", []).append(PLAIN)

    patch.setattr(Server, "_take_vector", hoarding)


PLAIN = session(test_leaks.PARAMETERS).inputs[test_leaks.NAMES[0]]


def signatures_not_checked(patch: Patch) -> None:
    patch.setattr(keys, "is_signed_by", lambda public, signature, message: True)


def terms_not_compared(patch: Patch) -> None:
    patch.setattr(messages, "refuse_other_terms", lambda mine, theirs: None)


def policy_not_asked(patch: Patch) -> None:
    patch.setattr(Demands, "refuse", lambda self, terms: None)


def repeated_keys_not_noticed(patch: Patch) -> None:
    """Set semantics lost: the roster's keys are not compared with each other."""
    real = messages.read_roster

    class Unequal(bytes):
        def __eq__(self, other: object) -> bool:
            return self is other

        def __hash__(self) -> int:
            return id(self)

    def read(payload: Any, cohort: Any, **named: Any) -> Any:
        roster = real(payload, cohort, **named)
        return {name: dataclasses.replace(each, mask=Unequal(each.mask)) for name, each in roster.items()}

    patch.setattr(messages, "read_roster", read)


def nonces_believed(patch: Patch) -> None:
    """A pledge binds nobody: whatever nonce is shown is taken."""
    patch.setattr(messages, "pledge", lambda *given: bytes(32))


def groups_by_name(patch: Patch) -> None:
    """The groups are known before anybody pledges anything."""
    real = graph.groups
    patch.setattr(graph, "groups", lambda parties, count, seed: real(parties, count, bytes(32)))


def one_nonce_enough(patch: Patch) -> None:
    """The seed is made of the first party's nonce alone."""
    real = messages.hash_nonces
    patch.setattr(messages, "hash_nonces", lambda drawing, nonces: real(drawing, {min(nonces): nonces[min(nonces)]}))


MUTANTS: list[tuple[Callable[[Patch], None], Callable[..., None], tuple[Any, ...]]] = [
    # mutant                                    the test that fails on it                                  arguments
    (reused_key_pair, test_leaks.test_no_key_of_one_session_comes_back_in_another, ()),
    (reused_key_pair, test_leaks.test_a_key_rebuilt_in_one_round_opens_no_other_round, ()),
    (missing_self_mask, test_leaks.test_a_vector_that_comes_late_stays_hidden_although_its_key_was_rebuilt, ()),
    (party_that_takes_the_server_s_threshold, test_lying_server.test_the_threshold_of_the_server_counts_nowhere, ()),
    (masks_from_a_32_bit_seed, test_leaks.test_all_bits_of_a_mask_key_count, ()),
    (
        shares_not_bound_to_the_session,
        test_leaks.test_sealed_shares_of_another_session_are_not_accepted_even_under_the_same_keys,
        (pytest.MonkeyPatch,),
    ),
    (model_not_in_the_session, test_leaks.test_the_model_is_in_every_mask, ()),
    (no_consistency_round, test_lying_server.test_different_survivor_lists_give_no_party_away, (2, True)),
    (
        party_without_a_floor,
        test_lying_server.test_a_lie_to_one_party_is_named_and_that_party_tells_nothing_more,
        ("survivors below the floor",),
    ),
    (
        party_that_does_not_look_at_the_graph,
        test_lying_server.test_a_sparse_list_of_survivors_that_cuts_the_graph_is_refused_below_the_floor,
        (),
    ),
    (both_shares_kept, test_lying_server.test_no_reply_can_hold_both_shares_of_one_peer, ()),
    (
        secrets_kept_after_masking,
        test_leaks.test_a_party_keeps_no_secret_after_its_vector_is_out_and_no_share_after_the_end,
        (),
    ),
    (
        server_that_adds_late_vectors,
        test_faults.test_an_answer_that_comes_after_its_step_was_closed_is_never_used,
        (Step.MASKED,),
    ),
    (server_that_adds_duplicates, test_faults.test_every_fault_of_an_answer_ends_as_stated, ("duplicate", Step.MASKED)),
    (
        server_that_checks_no_rebuilt_secret,
        test_liars.test_as_many_liars_as_there_are_spare_shares_do_no_harm_and_half_of_that_are_named,
        (1,),
    ),
    (
        server_that_keeps_the_vectors,
        test_leaks.test_no_object_of_the_server_and_no_message_holds_a_vector_or_a_secret,
        ({},),
    ),
    (
        signatures_not_checked,
        test_faults.test_every_fault_of_an_answer_ends_as_stated,
        ("flip in payload", Step.MASKED),
    ),
    (
        terms_not_compared,
        test_lying_server.test_a_lie_to_one_party_is_named_and_that_party_tells_nothing_more,
        ("another model",),
    ),
    (policy_not_asked, test_lying_server.test_terms_below_a_party_s_policy_are_refused_before_any_key_is_made, ()),
    (
        repeated_keys_not_noticed,
        test_lying_server.test_a_lie_to_one_party_is_named_and_that_party_tells_nothing_more,
        ("repeated key",),
    ),
    (
        nonces_believed,
        test_groups.test_every_lie_ends_in_its_reason_and_reveals_nothing_more,
        ("another nonce for a party",),
    ),
    (
        party_without_a_floor,
        test_groups.test_every_lie_ends_in_its_reason_and_reveals_nothing_more,
        ("survivors below the group's floor",),
    ),
    (groups_by_name, test_groups.test_groups_are_drawn_anew_in_each_session, ()),
    (one_nonce_enough, test_groups.test_groups_depend_on_every_nonce_and_every_key, ()),
]


@pytest.mark.parametrize(
    ("mutant", "test", "given"),
    MUTANTS,
    ids=[f"{mutant.__name__}-{test.__name__[5:45]}" for mutant, test, _ in MUTANTS],
)
@pytest.mark.some(8)
def test_the_named_test_fails_on_the_mutant(
    mutant: Callable[[Patch], None], test: Callable[..., None], given: tuple[Any, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        assert play(session(complete(5, threshold=3))).exact()  # a mutant that works: only the test can tell
        with pytest.raises((AssertionError, pytest.fail.Exception)), pytest.MonkeyPatch.context() as inner:
            test(*(inner if each is pytest.MonkeyPatch else each for each in given))
