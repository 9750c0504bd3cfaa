"""The connections to one PostgreSQL: opening them, healing after a restart, and what the server's errors mean."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streams.errors import LedgerError, LedgerMismatch, LedgerUnavailable, UsageError

__all__ = ["Connection", "Guard", "Server", "connect", "shown"]

T = TypeVar("T")
Connection = AsyncConnection[Any]

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60.0
LOCK_SECONDS = 10
IDLE_SECONDS = 300

# What they report is raised to whoever asked; without a handler of its own, Python would print it a second time.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

_ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
"""Of the server: what takes any text, or looks at none. In others an outcome could not be written after the work."""

_SECRETS = frozenset({"password", "sslpassword", "passfile", "sslkey"})
_COMING_UP = (
    *("starting up", "shutting down", "in recovery", "not yet accepting", "too many clients"),
    "remaining connection slots",
)
_PASSING = (psycopg.errors.TransactionRollback, psycopg.errors.LockNotAvailable, psycopg.OperationalError)
"""Errors that pass: a server that is away, a deadlock, a lock that was waited for in vain."""
_OF_THE_SERVER = ("40", "53", "57P", "58")
"""How codes of errors begin that no statement is to blame for: a deadlock, a full disk, a server that goes down."""


def shown(url: str) -> str:
    """The address without what may be a secret."""
    try:
        parts = urlsplit(url)
        user = f"{quote(parts.username)}@" if parts.username else ""
        place = parts.netloc.rpartition("@")[2]
    except ValueError:  # a bracket that is not closed
        return f"{url.partition('://')[0]}://…"
    settings = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SECRETS]
    query = f"?{urlencode(settings)}" if settings else ""
    return f"{parts.scheme}://{user}{place}{parts.path}{query}"


async def connect(url: str, connections_max: int) -> Server:
    """Connect once, so that a wrong address is told at once, then open the pool."""
    name, conninfo = shown(url), _conninfo(url)
    try:
        connection = await AsyncConnection.connect(conninfo)
    except psycopg.Error as error:
        raise _not_connected(error, name) from error
    encoding = connection.info.parameter_status("server_encoding")
    await connection.close()
    if encoding not in _ENCODINGS:
        raise UsageError(
            f"{name} is a database of encoding {encoding}, which cannot hold every text: make one for the ledger with "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
    pool = AsyncConnectionPool(
        conninfo,
        kwargs={"autocommit": True},
        min_size=1,
        max_size=connections_max,
        open=False,
        configure=_configure,
        check=_check,
        timeout=CONNECT_SECONDS,
        reconnect_timeout=CONNECT_SECONDS,
        name=f"ledger {name}",
    )
    await pool.open()
    return Server(name, pool, connections_max)


def _conninfo(url: str) -> str:
    example = "write postgresql://USER@HOST:PORT/DATABASE"
    if not url.startswith(("postgresql://", "postgres://")) or "\0" in url:
        raise UsageError(f"{shown(url)!r} is no address of a ledger in PostgreSQL: {example}")
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error as error:
        # libpq's message shows the address, password and all
        raise UsageError(f"{shown(url)!r} is no address of a ledger in PostgreSQL: {example}") from error.__cause__
    settings: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "streams ledger",
        "client_encoding": "UTF8",
        "keepalives_idle": 30,
        "tcp_user_timeout": round(ANSWER_SECONDS * 1000),
    }
    return make_conninfo("", **(settings | given))


async def _configure(connection: Connection) -> None:
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    # A claim that a crash of the server can take back is none. Who asks for more than `on` keeps it.
    await connection.execute(
        f"""
        SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', false),
               set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', false),
               CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                    THEN set_config('synchronous_commit', 'on', false) END
        """.encode()
    )


async def _check(connection: Connection) -> None:
    """Raise for a connection that the server has closed meanwhile: a restart closes all, and none is to be met.

    It looks only at what has arrived, so it costs no round trip. First comes the server's farewell, then the end.
    """
    for _ in range(2):
        connection.pgconn.consume_input()


class Server:
    """The pool of connections. `url` names it without secrets."""

    def __init__(self, url: str, pool: AsyncConnectionPool[Connection], connections_max: int) -> None:
        self.url = url
        self._pool = pool
        self._connections_max = connections_max
        self._pid = os.getpid()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def ask(
        self, work: Callable[[Connection, Guard], Awaitable[T]], repeat: Callable[[], bool] = lambda: True
    ) -> T:
        """Do it, and once more where the connection was dead or a lock in the way, if it may `repeat`."""
        try:
            return await self._once(work)
        except LedgerUnavailable as error:
            if isinstance(error.__cause__, PoolTimeout):
                raise
            if not repeat():
                raise
        return await self._once(work)

    async def _once(self, work: Callable[[Connection, Guard], Awaitable[T]]) -> T:
        async with self._session() as connection:
            with Guard(connection) as guard:
                return await work(connection, guard)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """A connection; errors of the server that are raised within come out as ours."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.url} was opened by process {self._pid} and is used in its fork {os.getpid()}: "
                "open it again there"
            )
        try:
            async with self._pool.connection() as connection:
                yield connection
        except psycopg.Error as error:
            raise self.translated(error) from error

    def passes(self, error: psycopg.Error, connection: Connection) -> bool:
        """Whether it came of the server, not of a handler's statement: what was begun is rolled back and repeated.

        Not all that passes elsewhere: a handler's statement that takes too long, that waits for a lock in vain or whose
        value no index takes fails at each try, and would hold up all others if it were taken for a server that is away.
        """
        return connection.closed or (error.sqlstate or "").startswith(_OF_THE_SERVER)

    def translated(self, error: psycopg.Error) -> LedgerError | UsageError:
        """The error of `streams` that says what the caller must do about one of the server's."""
        text = " ".join(str(error).split())
        if isinstance(error, PoolTimeout):
            return LedgerUnavailable(
                f"no connection to {self.url} within {CONNECT_SECONDS} s: the server is away, or all "
                f"{self._connections_max} connections are in use"
            )
        if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
            return LedgerMismatch(
                f"{self.url} has no tables of a ledger of this release ({text}): "
                "`streams subscribe MODULE:APP --ledger …` makes them, or brings them up to date"
            )
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return UsageError(f"{self.url}: {text}; grant the user of the ledger this right, or let the owner migrate")
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return LedgerUnavailable(f"{self.url} takes no writes ({text}): is it a standby?")
        if isinstance(error, _PASSING):
            return LedgerUnavailable(f"{self.url}: {text}")
        return LedgerError(f"{self.url}: {text}")


class Guard:
    """Cuts the connection when the server does not answer in time, and so ends whoever waits for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, _cut, self._connection)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def off(self) -> Iterator[None]:
        """What is done within may take any time."""
        self.__exit__()
        yield
        self.__enter__()


def _cut(connection: Connection) -> None:
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def _not_connected(error: psycopg.Error, url: str) -> LedgerUnavailable | UsageError:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line.partition("FATAL:")[2].strip() for line in said if "FATAL:" in line), "")
    if text and not any(words in text for words in _COMING_UP):
        return UsageError(f"{url} turned the connection down: {text}")
    told = text or (said or ["no answer"])[0]
    if "connection option" in told:
        return UsageError(f"{url} is no address of a ledger in PostgreSQL: {told}")
    return LedgerUnavailable(f"{url} cannot be reached: {told}")
