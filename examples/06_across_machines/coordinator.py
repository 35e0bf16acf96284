"""The coordinator of two sites on other machines: the same plan and the same call, with another federation.

python coordinator.py      beside run.toml, keys/ and the folder of a running ``quietsum superlink``
"""

from pathlib import Path

import quietsum as qs
from quietsum.federation import FlowerTransport, RemoteFederation, read_access
from quietsum.identity import read_verifiers

plan = qs.load_plan("run.toml")
print(f"will cost ε = {qs.forecast(plan).whole[0].epsilon:.2f} per record; the sites decide whether they take part")

roster = read_verifiers(Path("keys/parties.toml"))  # the public keys of the sites; a reply is held against them
transport = FlowerTransport(read_access(Path("superlink")))
federation = RemoteFederation(transport, roster=roster, patience=120)  # seconds for which it waits for the sites
try:
    run = qs.run(plan, workspace="workspace", federation=federation)
finally:
    federation.close()
print(f"{run.outcome} after {run.rounds} rounds: accuracy {run.metrics['accuracy']:.2f}")
if run.error:
    print(run.error)
