"""Four hospitals train one model; every round is reserved in the ledger first. Base install, data included.

python examples/03_federation.py
"""

import tempfile

import quietsum as qs

plan = qs.load_plan("""
[task]
name = "heart"
[federation]
rounds = 10
[training]
sample_rate = 0.25
[privacy]
record = { epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
""")
for guarantee in qs.forecast(plan).whole:
    print(f"will cost ε = {guarantee.epsilon:.4f} per {guarantee.unit} against the {guarantee.observer}")

with tempfile.TemporaryDirectory() as workspace:
    run = qs.run(plan, workspace=workspace)
    print(f"{run.outcome} after {run.rounds} rounds: accuracy {run.metrics['accuracy']:.2f}")
    print(f"the model has {len(run.model)} weights; the report is {run.path.name}/report.html")
