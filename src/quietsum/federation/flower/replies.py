"""What a SuperLink of ours takes from a node: replies to what it was sent, of bounded size, and nothing else.

Flower checks who calls, and then believes what the call says. A message that is no reply is kept as one *to a node*,
also where a node pushed it; the sender that stands in a message is not compared with the node that pushed it; a reply
may come with any number of objects of any size, and all of them are kept until the run is over. So one registered site
could speak to another in the coordinator's name, or fill the coordinator's disk. Here stands what we ask for on top, as
a plain function of the call; :mod:`.flwr_server` puts it before Flower's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quietsum.federation.flower.parcel import CHUNK, INLINE

__all__ = ["FORBIDDEN", "TOO_LARGE", "Objection", "objection", "objects_of"]

FORBIDDEN, TOO_LARGE = 403, 413
Objection = tuple[int, str]
"""An HTTP status and, in words, why."""


def objects_of(limit: int) -> int:
    """The most chunks that content of ``limit`` bytes is cut into.

    >>> objects_of(0), objects_of(INLINE), objects_of(INLINE + 1), objects_of(INLINE + CHUNK + 1)
    (0, 0, 1, 2)
    """
    return -(-max(0, limit - INLINE) // CHUNK)


def objection(request: Any, *, addressee: Callable[[str], int | None], superlink: int, limit: int) -> Objection | None:
    """Why this Fleet ``PushMessages`` call is not taken; None where it is.

    ``request.node`` is the node whose signature Flower has checked, ``addressee`` says to which node the message of
    that name went (None: there is none, or not any more).

    Guarantees: what is taken is one reply, in the caller's own name, to a message that went to the caller, with a tree
    of one root, which bears the reply's name, and no more chunks than content of ``limit`` bytes has.
    """
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1 or request.clientapp_runtime_list:
        return FORBIDDEN, "A call carries one reply, its tree, and nothing else."
    data, tree = request.messages_list[0].metadata, request.message_object_trees[0]
    if not data.reply_to_message_id:
        return FORBIDDEN, "A node sends replies only."
    if data.src_node_id != request.node.node_id:
        return FORBIDDEN, "A node replies in its own name only."
    if data.dst_node_id != superlink:
        return FORBIDDEN, "A reply goes to the coordinator only."
    if tree.object_id != data.message_id or any(child.children for child in tree.children):
        return FORBIDDEN, "A reply has one root, which bears its name, and chunks."
    if len(tree.children) > objects_of(limit) or _read_length(data.group_id) > limit:
        return TOO_LARGE, f"The reply is too large: {limit} bytes are taken."
    if addressee(data.reply_to_message_id) != request.node.node_id:
        return FORBIDDEN, "No message of that name waits for a reply of this node."
    return None


def _read_length(word: str) -> int:
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 15 else 0
