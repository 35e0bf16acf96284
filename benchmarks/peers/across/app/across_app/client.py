"""Flower's side of a site: take the model, one step, send it back."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from across_app import sites  # type: ignore[attr-defined]

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of one site."""
    params = message.content["arrays"]["params"].numpy()
    found = sites.trained(str(context.run_config["model"]), params, int(context.node_config["partition-id"]))
    arrays = ArrayRecord({"params": Array(np.asarray(found))})
    reply = {"arrays": arrays, "metrics": MetricRecord({"num-examples": sites.EACH})}
    return Message(RecordDict(reply), reply_to=message)
