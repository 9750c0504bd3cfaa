"""One PostgreSQL server that keeps its data in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from streams.dev.packages import postgres_programs
from streams.dev.process import (
    ENDED,
    Process,
    StackFailed,
    end,
    free_port,
    is_alive,
    is_free,
    read_state,
    spawn,
    tail,
    wait_for,
    write_state,
)
from streams.errors import UsageError

__all__ = ["Postgres", "read_postgres", "start_postgres", "stop_postgres"]

_STATE = "postgres.json"
_LOG = "postgres.log"
_NAME = "streams"  # of the user and of the database
_NOBODY = 65534
_STOP_SECONDS = 20.0


class Postgres(NamedTuple):
    """A server that was started."""

    folder: Path
    process: Process
    port: int

    @property
    def pid(self) -> int:
        """The server's first process."""
        return self.process.pid

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://{_NAME}@127.0.0.1:{self.port}/{_NAME}"

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return is_alive(self.process)

    @property
    def crashed(self) -> bool:
        """Whether it has ended without having been stopped."""
        return self.process != ENDED and not self.alive

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.folder / _LOG


def start_postgres(folder: Path | str, *, tied: bool = False, seconds: float = 60.0) -> Postgres:
    """Start the server of this folder, or find it running. Its port stays the same from start to start."""
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    last = read_postgres(folder)
    if last is not None and last.alive:
        return last
    data, programs, prefix = folder / "data", postgres_programs(), _not_as_root()
    if not (data / "PG_VERSION").exists():
        _initialise(data, prefix)
    port = last.port if last and is_free(last.port) else free_port()
    log = folder / _LOG
    options = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    process = spawn([str(programs / "postgres"), "-D", str(data), *options], log, cwd=folder, prefix=prefix, tied=tied)
    server = Postgres(folder, process, port)
    try:
        write_state(folder / _STATE, process, port)
        _wait_until_ready(server, programs, seconds)
    except BaseException:
        end(process, "PostgreSQL", signal.SIGINT, _STOP_SECONDS)  # whoever is interrupted here leaves no server behind
        raise
    return server


def read_postgres(folder: Path) -> Postgres | None:
    """The server that was last started in this folder, alive or not."""
    state = read_state(folder / _STATE)
    return Postgres(folder, state["process"], state["port"]) if state else None


def stop_postgres(server: Postgres) -> None:
    """Stop it in order (SIGINT: connections are cut, nothing is lost); its data stays."""
    end(server.process, "PostgreSQL", signal.SIGINT, _STOP_SECONDS)
    if server.folder.is_dir():
        write_state(server.folder / _STATE, ENDED, server.port)


def _wait_until_ready(server: Postgres, programs: Path, seconds: float) -> None:
    log = server.folder / _LOG
    address = ["-h", "127.0.0.1", "-p", str(server.port)]
    ready = [str(programs / "pg_isready"), "-q", *address]
    if not wait_for(lambda: not server.alive or _run(ready, log) == 0, seconds) or not server.alive:
        raise StackFailed(f"PostgreSQL did not start; its log {log} says: {tail(log)}")
    if not (server.folder / "database").exists():
        if _run([str(programs / "createdb"), *address, "-U", _NAME, _NAME], log):
            raise StackFailed(f"PostgreSQL's database could not be made; the log {log} says: {tail(log)}")
        (server.folder / "database").touch()


def _initialise(data: Path, prefix: Sequence[str]) -> None:
    """Made beside and moved: what is interrupted half-way must not pass for a database."""
    part = data.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    if prefix:
        os.chown(part, _NOBODY, -1)
    log = data.parent / _LOG
    command = [*prefix, str(postgres_programs() / "initdb"), "-D", str(part), "-U", _NAME, "--auth=trust"]
    if _run([*command, "--encoding=UTF8", "--locale=C", "--no-sync"], log):
        raise StackFailed(f"PostgreSQL's data could not be made in {data}: {tail(log)}")
    part.rename(data)


def _not_as_root() -> list[str]:
    """PostgreSQL refuses to run as root. There it runs as the user that owns nothing, but may go everywhere.

    The data and the programs may lie below /root, which is closed to others.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise UsageError("PostgreSQL does not run as root: use another user, or install util-linux, which has setpriv")
    everywhere = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    plain = [setpriv, f"--reuid={_NOBODY}", "--clear-groups"]
    allowed = subprocess.run([*plain, *everywhere, "true"], capture_output=True, check=False)  # noqa: S603 - see spawn
    return [*plain, *everywhere] if allowed.returncode == 0 else plain


def _run(command: Sequence[str], log: Path) -> int:
    with log.open("ab") as out:
        done = subprocess.run(  # noqa: S603 - a program of ours with arguments of ours
            command, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    return done.returncode
