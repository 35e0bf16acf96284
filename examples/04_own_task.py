"""A task of one's own in numpy: rows by site, one gradient per row, a score on public rows. Base install.

python examples/04_own_task.py
"""

import tempfile

import numpy as np

import quietsum as qs
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows


class SlopeTask:
    """Least squares through the origin: two sites learn one slope from made-up rows."""

    name, title, dimension = "slope", "a slope from two sites", 1

    def parties(self):
        """Who takes part: names, data sets and declared sizes, all public."""
        return tuple(PartyFacts(name=name, dataset=f"slope-{name}", size=200) for name in ("north", "south"))

    def initial(self):
        """The weights that everybody begins with."""
        return np.zeros(1)

    def rows(self, party):
        """The protected rows of one site; here you would read your file."""
        made = np.random.default_rng(len(party))
        features = made.uniform(-1, 1, (200, 1))
        return Rows(features=features, labels=2 * features[:, 0])

    def gradients(self, params, features, labels):
        """One gradient a row; clip and noise are quietsum's."""
        return (features @ params - labels)[:, None] * features

    def evaluate(self, params):
        """A score on rows that nobody needs to protect."""
        return Metrics(values={"slope": float(params[0])}, on="no rows: the slope itself, 2 is right")


plan = qs.load_plan("""
[task]
name = "04_own_task:SlopeTask"
[federation]
rounds = 15
[training]
sample_rate = 0.5
optimizer = { kind = "sgd", learning_rate = 1.0 }
[privacy]
record = { epsilon = 4.0, delta = 1e-4, max_grad_norm = 1.0 }
""")
with tempfile.TemporaryDirectory() as workspace:
    run = qs.run(plan, workspace=workspace, task=SlopeTask())
print(f"{run.outcome}: slope {run.metrics['slope']:.2f}, ε = {run.guarantees[0].epsilon:.3f} per record and site")
