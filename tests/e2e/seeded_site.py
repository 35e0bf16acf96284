"""A site for the test of equal models: public heart rows, and coins from a seed, which only a test may use.

Before its reply of round N leaves, the file ``round-N`` is in its folder: whoever carries the reply can tell.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from federation.sites import facts_of, plan_of, policy_for
from quietsum.federation.flower.node import serve_node
from quietsum.identity.nodekeys import read_signer
from quietsum.ledger import Kind, Ledger
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.party.policy import SiteDataset
from quietsum.party.service import SiteService


def main() -> None:
    keys, name, address, seed = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    key = keys / name / "node.key"
    facts = facts_of(plan_of())[name]
    public = SiteDataset(name=facts.dataset, size=facts.size, public=facts.public)
    policy = policy_for(name, keys / name, record=None, dataset=public)
    with Ledger.open(keys / name / "ledger.db", create=True) as ledger:
        service = SiteService(policy, ledger, node_key=read_signer(key), rng=randomness_for_tests(seed))

        def answer(content: bytes) -> bytes:
            reply = service.answer(content)
            for entry in ledger.entries():
                if entry.kind is Kind.COMMIT:
                    (keys / name / f"round-{entry.body['round']}").touch()
            return reply

        serve_node(answer, address=address, root_certificate=keys / "ca.crt", node_key=key, stop=stop)


if __name__ == "__main__":
    main()
