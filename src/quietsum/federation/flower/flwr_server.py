"""The SuperLink's own process: Flower's server behind our door and our gate, with our checks before its Fleet calls."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from quietsum.federation.flower.childlog import speak_plainly, watch_length
from quietsum.federation.flower.door import serve_door, server_side
from quietsum.federation.flower.flwr_calls import SUPERLINK_NODE
from quietsum.federation.flower.gate import DISK_FLOOR, FrontGate
from quietsum.federation.flower.replies import objection

__all__ = ["guard_fleet", "serve_superlink", "verify_moment"]

KEEP_ALIVE = 20
"""Seconds that a SuperLink keeps an idle connection; longer than its clients do, so that no request meets its end."""
ANSWERED = 4096
"""Announcements whose answers a SuperLink can give again."""


def guard_fleet(limit: int) -> None:
    """Have Flower's Fleet calls in this process go through ours; see :mod:`.replies`.

    A node that comes back after a kill is let in at once: Flower would keep it out for as long as it believes the
    killed process to be alive. The key says who it is, and the newest process with that key is the one that counts.

    A node that lost the answer to its announcement asks again. Flower forgets whom a message went to as soon as the
    coordinator has seen the announcement, so the first answer is kept and given again for the very same reply.
    """
    from fastapi import HTTPException
    from flwr.supercore.utils import int64_to_uint64
    from flwr.superlink.servicer.fleet import fleet_handlers

    activate, push = fleet_handlers.activate_node, fleet_handlers.push_messages
    answered: OrderedDict[tuple[int, str, str], Any] = OrderedDict()
    lock = threading.Lock()

    def activate_again(request: Any, state: Any) -> Any:
        known = state.get_node_id_by_public_key(request.public_key)
        if known is not None:
            state.deactivate_node(known)
        return activate(request, state)

    def push_reply(request: Any, state: Any) -> Any:
        def addressee(name: str) -> int | None:
            found = state.get_valid_message_ins(name)
            return None if found is None else int64_to_uint64(found["dst_node_id"])

        known = [
            (request.node.node_id, each.metadata.reply_to_message_id, each.metadata.message_id)
            for each in request.messages_list
        ]
        found = objection(request, addressee=addressee, superlink=SUPERLINK_NODE, limit=limit)
        if found is not None:
            with lock:
                before = answered.get(known[0]) if len(known) == 1 else None
            if before is not None:
                return before
            raise HTTPException(*found)
        answer = push(request, state)
        with lock:
            answered[known[0]] = answer
            if len(answered) > ANSWERED:
                answered.popitem(last=False)
        return answer

    fleet_handlers.activate_node, fleet_handlers.push_messages = activate_again, push_reply


def serve_superlink(
    arguments: Sequence[str],
    *,
    public: socket.socket,
    private: socket.socket,
    secret: str,
    folder: str,
    limit: int,
    disk_floor: int = DISK_FLOOR,
    clients: str | None = None,
) -> None:
    """Be a SuperLink, on two sockets that are bound already, until SIGTERM. ``folder`` is where its database is.

    With ``clients``, a file of authorities, the public socket takes only callers with a certificate of one of them.
    """
    import importlib
    import shutil

    import uvicorn
    from flwr.superlink.main import create_app

    program = importlib.import_module("flwr.superlink.cli.flower_superlink")  # a function hides it by its name
    guard_fleet(limit)
    speak_plainly([FLOWER_LOGGER, logging.getLogger("quietsum")])
    watch_length(Path(folder) / "superlink.log")
    sys.argv = ["flower-superlink", *arguments]
    config = program._parse_superlink_lifespan_config()
    app = create_app(config, program.SuperLinkLifespan)
    host, port = private.getsockname()[:2]
    gate = FrontGate(
        app,
        private=(host, port),
        secret=secret,
        free=lambda: shutil.disk_usage(folder).free,
        floor=disk_floor,
        signed=verify_moment,
    )
    theirs = ours = None
    if config.ssl_certfile and config.ssl_keyfile:
        theirs = server_side(config.ssl_certfile, config.ssl_keyfile, clients=clients)
        ours = server_side(config.ssl_certfile, config.ssl_keyfile)
    serve_door(
        uvicorn.Config(
            gate,
            loop="asyncio",
            ws="none",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=2,
        ),
        [(public, theirs, None), (private, ours, "the operator's side")],
    )


def verify_moment(key: bytes, moment: bytes, signature: bytes) -> bool:
    """Whether ``signature`` (base64) is that of ``key`` under a time; Flower asks for more.

    ``key`` is written as :func:`~quietsum.federation.flower.flwr_coordinator.gate_word` does.
    """
    try:
        holder = bytes_to_public_key(base64.b64decode(key, validate=True))
        return verify_signature(holder, moment, base64.b64decode(signature, validate=True))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _main() -> None:
    """The child process of :class:`quietsum.federation.flower.superlink.SuperLink`.

    What it needs comes as one line on standard input (a command line can be read by everybody on the machine); the
    end of standard input means that the parent is gone.
    """
    os.umask(0o077)
    with contextlib.suppress(ImportError, OSError, ValueError):  # every site is a connection, and so is every stranger
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    given = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.fileno()

    def watch() -> None:
        with contextlib.suppress(OSError):  # not sys.stdin: its lock, held while it reads, would abort a failed start
            while os.read(source, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    serve_superlink(
        given["arguments"],
        public=socket.socket(fileno=given["public"]),
        private=socket.socket(fileno=given["private"]),
        secret=given["secret"],
        folder=given["folder"],
        limit=given["limit"],
        disk_floor=given["disk_floor"],
        clients=given["clients"],
    )


if __name__ == "__main__":
    _main()
