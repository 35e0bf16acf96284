"""Rows about clients as a whole: who adds the noise, whom it binds, and what the draw of parties is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.plan.refusals.row import RefusalRow, client_level, client_of, name_stated, taking_part

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["ROWS"]


def _client_unasked(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.client is None or client_level(plan):
        return ""
    return f"privacy.client beside privacy.style = '{plan.privacy.style}'"


def _private_weights(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if client_level(plan) and plan.aggregation.weights == "size":
        return f"aggregation.weights = 'size' under privacy.style = '{plan.privacy.style}'"
    return ""


def _no_promise(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client = client_of(plan)
    if not client_level(plan) or client.epsilon is not None or client.noise_multiplier is not None:
        return ""
    return f"privacy.style = '{plan.privacy.style}' without a number for clients"


def _no_delta(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not client_level(plan) or plan.privacy.client is None or plan.privacy.client.delta is not None:
        return ""
    count = len(taking_part(plan, parties))
    return "privacy.client.delta is missing" + (f" (1/(10 N) is {1 / (10 * count):.1g} here)" if count else "")


def _large_delta(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client, count = client_of(plan), len(taking_part(plan, parties))
    lifetime = client.lifetime.delta if client.lifetime else None
    deltas = {"privacy.client.delta": client.delta, "privacy.client.lifetime.delta": lifetime}
    told = [f"{name} = {delta:g}" for name, delta in deltas.items() if delta is not None and delta * count >= 1]
    if not client_level(plan) or not told:
        return ""
    return f"{' and '.join(told)} is not below 1/N for N = {count:,} clients"


def _noise_with_target(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client = client_of(plan)
    if client.epsilon is None or client.noise_multiplier is None:
        return ""
    return (
        f"privacy.client states noise_multiplier = {client.noise_multiplier:g} together with "
        f"epsilon = {client.epsilon:g}"
    )


def _small_lifetime(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client = client_of(plan)
    if client.lifetime is None:
        return ""
    for name in ("epsilon", "delta"):
        own, whole = getattr(client, name), getattr(client.lifetime, name)
        if own is not None and own > whole:
            return f"privacy.client.lifetime.{name} = {whole:g} is less than privacy.client.{name} = {own:g}"
    return ""


def _record_unasked(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.style != "user":
        return ""
    told = name_stated(plan, ("epsilon", "noise_multiplier", "delta", "lifetime"))
    told = told or ("privacy.preset" if plan.privacy.preset else "")
    return f"{told} beside privacy.style = 'user'" if told else ""


def _against_server(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client = client_of(plan)
    if not client_level(plan) or client.against != "server" or client.noise_at != "server":
        return ""
    return "privacy.client.against = 'server' with noise_at = 'server'"


def _central_noise_after_rule(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    rule = plan.aggregation.rule
    if not client_level(plan) or client_of(plan).noise_at != "server" or rule == "mean":
        return ""
    return f"noise at the server after aggregation.rule = '{rule}'"


def _adaptive_at_party(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    client = client_of(plan)
    if not client.adaptive or client.noise_at == "server":
        return ""
    return f"privacy.client.adaptive with noise_at = '{client.noise_at}'"


def _adaptive_with_clips(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if client_of(plan).adaptive is None or all(stage.clip == 1 for stage in plan.schedule):
        return ""
    return "privacy.client.adaptive beside a schedule of clips"


def _minimum(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    least = plan.federation.minimum_parties
    if not client_level(plan) or least == 1:
        return ""
    return f"federation.minimum_parties = {least} under privacy.style = '{plan.privacy.style}'"


def _size_is_fixed(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not client_level(plan) or plan.federation.sampling.kind != "fixed-size":
        return ""
    if plan.privacy.neighbours != "add-or-remove-one":
        return ""
    return "federation.sampling of kind 'fixed-size' under neighbours = 'add-or-remove-one'"


def _party_noise_neighbours(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not client_level(plan) or client_of(plan).noise_at == "server":
        return ""
    if plan.privacy.neighbours != "add-or-remove-one":
        return ""
    return f"privacy.client.noise_at = '{client_of(plan).noise_at}' under neighbours = 'add-or-remove-one'"


def _dealt_out_clients(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not client_level(plan) or (plan.federation.split == "natural" and not isinstance(plan.federation.parties, int)):
        return ""
    if all(party.public for party in taking_part(plan, parties)):
        return ""
    return f"federation.split = '{plan.federation.split}' makes the clients that privacy.style protects"


ROWS: tuple[RefusalRow, ...] = (
    RefusalRow(
        name="party-noise-neighbours",
        when=_party_noise_neighbours,
        why="a client that sends takes part, which no noise hides; what is hidden is what a client holds",
        instead='say neighbours = "zero-out" or "replace-one"',
    ),
    RefusalRow(
        name="dealt-out-clients",
        when=_dealt_out_clients,
        why="clients dealt out of protected records stand for no person or site, and another split deals them out anew",
        instead='say split = "natural" where the task has sites, or style = "sample"',
    ),
    RefusalRow(
        name="client-unasked",
        when=_client_unasked,
        why="a promise to clients that this style does not keep must not stand in a plan",
        instead='remove privacy.client, or say style = "user" or "hybrid"',
    ),
    RefusalRow(
        name="private-weights",
        when=_private_weights,
        why="a client's number of records is its own secret there, and weighing by it gives it away",
        instead='say weights = "equal", or leave it out',
    ),
    RefusalRow(
        name="no-client-promise",
        when=_no_promise,
        why="the noise follows from the promise",
        instead='state client = { epsilon = 8.0, delta = 1e-4, max_norm = 0.5 }, or say style = "sample"',
    ),
    RefusalRow(
        name="no-client-delta",
        when=_no_delta,
        why="an ε means nothing without its δ",
        instead="state it, at most 1/(10 N) for the N registered clients",
    ),
    RefusalRow(
        name="client-delta-too-large",
        when=_large_delta,
        why="at δ = 1/N a mechanism may give one client away in full and still keep its promise",
        instead="choose at most 1/(10 N)",
    ),
    RefusalRow(
        name="client-noise-with-target",
        when=_noise_with_target,
        why="the noise follows from a target ε and the ε from a noise, so one of them would be wrong",
        instead="keep epsilon to have the noise calibrated, or noise_multiplier to have ε computed",
    ),
    RefusalRow(
        name="client-lifetime-below-plan",
        when=_small_lifetime,
        why="the run alone would spend more than the dataset may ever spend",
        instead="raise the lifetime budget, or promise less in this run",
    ),
    RefusalRow(
        name="record-unasked",
        when=_record_unasked,
        why="a promise to records that this style does not keep must not stand in a plan",
        instead='remove it, or say style = "hybrid" to protect both',
    ),
    RefusalRow(
        name="against-the-server",
        when=_against_server,
        why="the server sees every update before its noise and knows whom it drew, so neither noise nor draw binds it",
        instead='say noise_at = "distributed" or "party", or against = "recipients"',
    ),
    RefusalRow(
        name="central-noise-after-rule",
        when=_central_noise_after_rule,
        why="such a rule has no bound on how far one client moves its result, so no noise fits it",
        instead='say rule = "mean", or noise_at = "party": after that, any rule is post-processing',
    ),
    RefusalRow(
        name="adaptive-at-party",
        when=_adaptive_at_party,
        why="the count of small updates would leave the parties without noise",
        instead="leave adaptive out and state max_norm",
    ),
    RefusalRow(
        name="adaptive-with-clips",
        when=_adaptive_with_clips,
        why="two rules would set the same clip",
        instead="keep one of them",
    ),
    RefusalRow(
        name="minimum-with-clients",
        when=_minimum,
        why="a round that fails for want of replies tells how many there were, without noise",
        instead="leave minimum_parties at 1: with too few replies the step is noise alone",
    ),
    RefusalRow(
        name="fixed-size-neighbours",
        when=_size_is_fixed,
        why="a client that comes or goes changes the chance of all the others to be drawn",
        instead='say neighbours = "zero-out" (or "replace-one"), or kind = "poisson"',
    ),
)
