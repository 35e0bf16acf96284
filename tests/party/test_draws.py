"""How often groups are drawn is counted by the site, whatever the coordinator says in between."""

from __future__ import annotations

import numpy as np

import party.asking as asking
from party.asking import Place, Server, fresh
from quietsum.party.peers import certificate, identity_of
from quietsum.party.policy import (
    AllowedTask,
    CoordinatorAddress,
    Policy,
    Rules,
    SiteDataset,
    SiteName,
    UnitPolicy,
)
from quietsum.party.secure import model_hash, sessions_of, terms_of
from quietsum.plan import PartyFacts, Plan, resolve
from quietsum.secagg import Identity
from quietsum.secagg import Server as Relay

NAMES = ["north", *(f"s{at:02d}" for at in range(1, 16))]
PLAN = Plan.from_dict(
    {
        "task": {"name": "points"},
        "federation": {"rounds": 2, "deadline": 20.0},
        "training": {"sample_rate": 0.25, "local_steps": 2},
        "privacy": {"style": "sample", "record": asking.RECORD},
        "aggregation": {"secure": True, "groups": 3, "rule": "median", "attackers": 0, "colluders": 2},
    }
)
POLICY = Policy(
    site=SiteName(name="north"),
    coordinator=CoordinatorAddress(address="127.0.0.1:9092"),
    dataset=SiteDataset(name="points-north", size=120),
    tasks=(AllowedTask(name="points"),),
    rules=Rules(aggregation=("mean",), smallest_cohort=1),
    record=UnitPolicy(epsilon=30.0, delta=1e-3, run=10.0, smallest_noise=1.0, largest_clip=4.0),
)


def test_a_farewell_gives_no_new_draws_and_no_new_peers() -> None:
    resolved = resolve(PLAN, [PartyFacts(name=name, dataset=f"points-{name}", size=120) for name in NAMES], 3)
    place, server, boss = Place(POLICY), Server(), Identity.fresh()
    own = server.enrol(place, resolved).body["identity"]

    def others() -> tuple[dict[str, object], dict[str, bytes]]:
        ledgers = {name: fresh() for name in NAMES[1:]}
        keys = {name: identity_of(ledger) for name, ledger in ledgers.items()}
        told: dict[str, object] = {"north": own}
        told |= {n: certificate(ledgers[n], ledgers[n].identity.public_key, n, keys[n]) for n in keys}
        return told, {"north": bytes.fromhex(own["key"])} | {name: key.public for name, key in keys.items()}

    def opened(attempt: int, peers: dict[str, object], public: dict[str, bytes]) -> str:
        model = model_hash(np.zeros(3))
        relay = Relay(terms=terms_of(resolved, ("first", 1, attempt), model), identity=boss, identities=public)
        body = {
            "run": "first", "round": 1, "attempt": attempt, "plan": resolved.plan.digest, "step": "open",
            "model": model, "server": boss.public.hex(), "peers": peers,
        }  # fmt: skip
        letter = server.say(place, "secure", body, payload=relay.open()["north"])
        return f"{letter.kind} {letter.body.get('reason', '')}"

    most = sessions_of(resolved)
    assert most is not None
    known, strangers = others(), others()
    assert all(opened(attempt, *known).startswith("secure") for attempt in range(1, most + 1))
    for attempt in range(most + 1, most + 4):
        assert opened(attempt, *known).startswith("refused")
        server.say(place, "farewell", {"run": "first"})
    assert "ledger" in opened(most + 9, *strangers)
