"""Flower's SecAgg+ in one process: its own workflow and its own client mod, with every message written and read.

The grid below stands where Flower's network would: each message goes through Flower's protobuf form on both sides, as
bytes, and its cost is charged to the side that writes or reads it. Nothing else of the network is counted. The strategy
returns the sum as it is, so averaging costs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

logging.getLogger("flwr").setLevel(logging.CRITICAL)
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


class Proxy:
    """A client as the workflow knows it."""

    def __init__(self, node: int) -> None:
        self.node_id = node


class Strategy:
    """Everyone takes part, and the result is kept as it is."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = list(nodes)
        self.result: Any = None

    def configure_fit(self, number: int, parameters: Any, manager: Any) -> list[tuple[Proxy, FitIns]]:
        """Everyone, every time."""
        return [(Proxy(node), FitIns(parameters, {})) for node in self.nodes]

    def aggregate_fit(self, number: int, results: list[Any], failures: list[Any]) -> tuple[Any, dict[str, Any]]:
        """The parameters that the workflow decoded."""
        self.result = parameters_to_ndarrays(results[0][1].parameters)
        return results[0][1].parameters, {}


class Manager:
    """The workflow asks how many there are."""

    def num_available(self) -> int:
        """Only printed."""
        return 0


class Grid:
    """Delivers each message as bytes, and counts the processor's time of each client."""

    def __init__(self, updates: Mapping[int, NDArray[np.float32]], dropped: set[int]) -> None:
        self.updates, self.dropped = updates, dropped
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in updates}
        self.seconds = dict.fromkeys(updates, 0.0)
        self.bytes_up = dict.fromkeys(updates, 0)
        self.stage = 0

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        """One stage of the protocol: every message out and back as bytes."""
        self.stage += 1
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            raw = message_to_proto(message).SerializeToString()  # at the server
            start = time.process_time()
            answer = self.client(node, raw)
            self.seconds[node] += time.process_time() - start
            self.bytes_up[node] += len(answer or b"")
            if answer is None:
                replies.append(Message(Error(code=1, reason="gone"), reply_to=message))
            else:
                replies.append(message_from_proto(Proto.FromString(answer)))  # at the server again
        return replies

    def client(self, node: int, raw: bytes) -> bytes | None:
        """What one client does in one stage; None once it has dropped out, from the third stage on."""
        if self.stage >= 3 and node in self.dropped:
            return None
        message = message_from_proto(Proto.FromString(raw))

        def fit(asked: Message, context: Context) -> Message:
            done = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self.updates[node]]), 1000, {})
            return Message(compat.fitres_to_recorddict(done, False), reply_to=asked)

        return message_to_proto(secaggplus_mod(message, self.contexts[node], fit)).SerializeToString()


def session(
    updates: Mapping[int, NDArray[np.float32]], *, dropped: set[int], threshold: int
) -> tuple[float, list[float], int, NDArray[np.float64]]:
    """Server's seconds, seconds of each client that stayed, bytes one of them sent, and the mean that came out."""
    grid, strategy = Grid(updates, dropped), Strategy(updates)
    state = RecordDict()
    context = LegacyContext(Context(1, 0, {}, state, {}), strategy=strategy, client_manager=Manager())  # type: ignore[arg-type]
    first = next(iter(updates.values()))
    context.state[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        ndarrays_to_parameters([np.zeros_like(first)]), False
    )
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    workflow = SecAggPlusWorkflow(num_shares=len(updates), reconstruction_threshold=threshold, clipping_range=1.0)
    start = time.process_time()
    workflow(grid, context)  # type: ignore[arg-type]
    whole = time.process_time() - start
    if strategy.result is None:
        raise RuntimeError("Flower's aggregation did not finish")
    stayed = [node for node in updates if node not in dropped]
    seconds = [grid.seconds[node] for node in stayed]
    return whole - sum(grid.seconds.values()), seconds, grid.bytes_up[stayed[0]], strategy.result[0]
