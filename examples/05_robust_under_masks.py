"""Secure aggregation and a robust rule together: random groups, a masked sum of each, a median between them.

A mean under masks hides a site's update from the server, and its mistakes with it. Of thirty-two sites three have their
labels in a wrong unit. No site and no server can see which. Base install, made-up rows.

python examples/05_robust_under_masks.py
"""

import tempfile

import numpy as np

import quietsum as qs
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows

SITES = [f"site-{number:02}" for number in range(32)]


class SlopeTask:
    """As in 04_own_task.py, least squares; the first three sites have labels of the wrong sign and size."""

    name, title, dimension = "slope", "a slope from thirty-two sites", 1

    def parties(self):
        return tuple(PartyFacts(name=name, dataset=f"slope-{name}", size=200) for name in SITES)

    def initial(self):
        return np.zeros(1)

    def rows(self, party):
        features = np.random.default_rng(SITES.index(party)).uniform(-1, 1, (200, 1))
        return Rows(features=features, labels=2 * features[:, 0] * (-10 if party in SITES[:3] else 1))

    def gradients(self, params, features, labels):
        return (features @ params - labels)[:, None] * features

    def evaluate(self, params):
        return Metrics(values={"slope": float(params[0])}, on="no rows: the slope itself, 2 is right")


plan = qs.load_plan("""
task.name = "05_robust_under_masks:SlopeTask"
federation.rounds = 12
training = { sample_rate = 1.0, local_steps = 1, optimizer = { kind = "sgd", learning_rate = 1.5 } }
privacy.record = { epsilon = 4.0, delta = 1e-5, max_grad_norm = 1.0, noise_at = "distributed" }
aggregation = { secure = true, drop_outs = 0.0 }
""").to_dict()
for rule in ({"rule": "mean"}, {"rule": "median"}, {"rule": "median", "groups": 8, "attackers": 3}):
    try:
        with tempfile.TemporaryDirectory() as workspace:
            chosen = qs.Plan.from_dict({**plan, "aggregation": {**plan["aggregation"], **rule}})
            run = qs.run(chosen, workspace=workspace, task=SlopeTask())
        spent = run.guarantees[0]
        print(rule, f"slope {run.metrics['slope']:.2f}, ε = {spent.epsilon:.2f} against the {spent.observer}")
    except qs.PlanRefused as refusal:
        print(rule, "is refused:", refusal)
