"""A site for the tests of the Flower transport, in a process of its own: it answers with its name and what it got.

``grow N`` is answered with N bytes, ``fail`` with an exception, ``slow`` after a second, with a sign in its folder.
With one more argument the site stops before it pushes the second object of a reply, leaves that file as a sign, and
waits to be killed.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from quietsum import failpoints
from quietsum.errors import QuietsumError
from quietsum.federation.flower.node import serve_node


def answer_as(name: bytes, folder: Path) -> Callable[[bytes], bytes]:
    def answer(content: bytes) -> bytes:
        if content == b"fail":
            raise RuntimeError("as asked")
        if content.startswith(b"grow "):
            return bytes(range(256)) * (int(content[5:]) // 256)
        if content == b"slow":
            (folder / "slow.sign").touch()
            time.sleep(1.0)
        return name + b":" + content

    return answer


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    folder, name, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if len(sys.argv) > 4:
        sign, pushed = Path(sys.argv[4]), 0

        def hold(place: str) -> None:
            nonlocal pushed
            pushed += place == "flower:push-object"
            if pushed == 2:
                sign.touch()
                time.sleep(600)

        failpoints.install(hold)
    try:
        serve_node(
            answer_as(name.encode(), folder),
            address=address,
            root_certificate=folder / "ca.crt",
            node_key=folder / f"{name}.key",
            stop=stop,
            limit=12_000_000,
        )
    except QuietsumError as error:
        sys.exit(f"refused: {error}")


if __name__ == "__main__":
    main()
