"""The outside world of the order demo: stock and card payments, as a process and a database of their own.

    python examples/provider.py --port 8765 --db provider.db

It is the judge of "one payment": whatever happens to workers and logs, what it counts is what happened. So it shares
no code with `streams`, keeps everything in SQLite, and does each piece of work and its idempotency record in one
transaction. JSON over HTTP on 127.0.0.1, or where `--host` says: it knows no passwords, so anything wider is for closed
networks only. A POST, except to /behaviours, needs the header `Idempotency-Key`, which is percent-encoded.

    POST /reservations {order_id, sku, quantity}               takes stock; 409 OUT_OF_STOCK
    POST /reservations/ID/release                              gives it back, once, however often asked
    POST /intents {order_id, amount, currency, card?}          an intent is no payment
    POST /intents/ID/confirm                                   captures the payment; 402 CARD_DECLINED
    POST /intents/ID/void                                      the intent can no longer be confirmed
    POST /behaviours {order_id, operation, mode, times?, delay_ms?}
    GET  /operations/KEY  /intents/ID  /reservations/ID  /payments?order_id=  /stock/SKU  /stats  /health

A key seen again with the same request gets the stored answer; with another request it gets 409 IDEMPOTENCY_CONFLICT.
Successes and refusals of the business (402, 409) are stored; requests that were never understood (400, 404) are not.

Faults are told per order and operation (reserve, release, intent, confirm, void), by POST /behaviours or by a field
`behaviour` {operation, mode, times?, delay_ms?} in the body of any request of that order, which is taken up once:

    fail_before  503 and nothing was done       fail_after  the work is done, then 500
    decline      402 (confirm only)             drop_after  the work is done, then the connection closes
    slow         the answer waits delay_ms

Each hits the next `times` requests (default 1), replays too. `--fail-before N` and `--fail-after N` do the same to the
first N confirm requests of every order. `--ignore-keys` makes it a bad provider: it does the work again each time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import socketserver
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote

APPLICATION_ID = 0x70726F76  # marks the file, so that a wrong --db never gets our tables
STOCK_INITIAL = 1_000_000
BODY_BYTES_MAX = 65_536
KEY_CHARS_MAX = 300
TEXT_CHARS_MAX = 200
COUNT_MAX = 1_000_000
DELAY_MS_DEFAULT = 1_000
DELAY_MS_MAX = 600_000
BUSY_S_MAX = 10
IDLE_S_MAX = 60

# The paths of the operations, their required fields and their optional ones.
POSTS = {
    "reserve": (r"/reservations", ("order_id", "sku", "quantity"), ("behaviour",)),
    "release": (r"/reservations/([^/]+)/release", (), ("order_id", "behaviour")),
    "intent": (r"/intents", ("order_id", "amount", "currency"), ("card", "behaviour")),
    "confirm": (r"/intents/([^/]+)/confirm", (), ("order_id", "behaviour")),
    "void": (r"/intents/([^/]+)/void", (), ("order_id", "behaviour")),
}
MODES = ("fail_before", "fail_after", "drop_after", "decline", "slow")

# `requests` is the journal of every operation asked for, whatever became of it; nothing is ever deleted from it.
SCHEMA = """
CREATE TABLE stock (sku TEXT PRIMARY KEY, available INTEGER NOT NULL CHECK (available >= 0));
CREATE TABLE reservations (reservation_id TEXT PRIMARY KEY, order_id TEXT NOT NULL, sku TEXT NOT NULL,
                           quantity INTEGER NOT NULL, status TEXT NOT NULL CHECK (status IN ('open', 'released')));
CREATE TABLE intents (intent_id TEXT PRIMARY KEY, order_id TEXT NOT NULL, amount TEXT NOT NULL, currency TEXT NOT NULL,
                      card TEXT NOT NULL, status TEXT NOT NULL CHECK (status IN ('created', 'captured', 'voided')));
CREATE TABLE payments (payment_id TEXT PRIMARY KEY, intent_id TEXT NOT NULL, order_id TEXT NOT NULL,
                       amount TEXT NOT NULL, currency TEXT NOT NULL, status TEXT NOT NULL);
CREATE TABLE operations (key TEXT PRIMARY KEY, operation TEXT NOT NULL, request_hash TEXT NOT NULL,
                         status INTEGER NOT NULL, response TEXT NOT NULL);
CREATE TABLE behaviours (order_id TEXT, operation TEXT, mode TEXT, remaining INTEGER NOT NULL,
                         delay_ms INTEGER NOT NULL, PRIMARY KEY (order_id, operation, mode));
CREATE TABLE requests (operation TEXT NOT NULL, order_id TEXT, key TEXT, status INTEGER NOT NULL, code TEXT);
CREATE INDEX requests_of_order ON requests (operation, order_id);
CREATE INDEX payments_of_order ON payments (order_id);
"""

COUNTS = {
    "requests": "SELECT count(*) FROM requests WHERE operation = 'confirm'",  # failed and replayed ones too
    "payments": "SELECT count(*) FROM payments",
    "intents": "SELECT count(*) FROM intents",
    "voided": "SELECT count(*) FROM intents WHERE status = 'voided'",
    "reservations": "SELECT count(*) FROM reservations WHERE status = 'open'",
    "released": "SELECT count(*) FROM reservations WHERE status = 'released'",
    "conflicts": "SELECT count(*) FROM requests WHERE code = 'IDEMPOTENCY_CONFLICT'",
    "second_keys": "SELECT count(*) FROM requests WHERE operation = 'confirm' AND code = 'INTENT_CAPTURED'",
}
PER_ORDER = {
    "requests": "SELECT order_id, count(*) FROM requests WHERE operation = 'confirm' AND order_id NOT NULL GROUP BY 1",
    "payments": "SELECT order_id, count(*) FROM payments GROUP BY 1",
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back; `dropped` closes the connection instead."""

    status: int
    body: Json
    delay_ms: int = 0
    dropped: bool = False


class RefusedError(Exception):
    """The request gets this answer instead of a success."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"code": code, "message": message})


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags that change how it behaves."""

    ignore_keys: bool = False
    fail_before: int = 0
    fail_after: int = 0


@dataclass(frozen=True, slots=True)
class Post:
    """An operation that was understood. `target` is the id in its path, empty where the path has none."""

    operation: str
    target: str
    key: str
    body: Json
    order_id: str
    declined: bool = False

    def hash(self) -> str:
        request = json.dumps([self.operation, self.target, self.body], sort_keys=True)
        return hashlib.sha256(request.encode()).hexdigest()


# ---- Reading requests: anything not exactly as documented is a 400 that says what to write --------------------------


def bad(message: str) -> RefusedError:
    return RefusedError(400, "BAD_REQUEST", message)


def missing(what: str) -> RefusedError:
    return RefusedError(404, "NOT_FOUND", f"there is no {what}")


def read_object(raw: bytes) -> Json:
    try:
        body = json.loads(raw.decode() or "{}")
    except (ValueError, RecursionError):
        raise bad("the body is not JSON in UTF-8") from None
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    return body


def read_key(header: str | None) -> str:
    key = unquote(header or "")
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise bad(f"the header Idempotency-Key is needed, 1 to {KEY_CHARS_MAX} characters, percent-encoded")
    return key


def is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX and value.isprintable()


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= COUNT_MAX


def is_amount(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", value) and value.strip("0."))


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "order_id": (is_text, f"a printable text of 1 to {TEXT_CHARS_MAX} characters"),
    "sku": (is_text, f"a printable text of 1 to {TEXT_CHARS_MAX} characters"),
    "quantity": (lambda value: is_count(value) and value > 0, f"a whole number from 1 to {COUNT_MAX}"),
    "amount": (is_amount, 'a decimal above zero as text, like "12.50"'),
    "currency": (lambda value: isinstance(value, str) and bool(re.fullmatch("[A-Z]{3}", value)), 'like "EUR"'),
    "card": (lambda value: value in ("ok", "declined"), '"ok" or "declined"'),
    "behaviour": (lambda value: value is None or isinstance(value, dict), "an object or null"),
    "operation": (lambda value: value in tuple(POSTS), f"one of {', '.join(POSTS)}"),
    "mode": (lambda value: value in MODES, f"one of {', '.join(MODES)}"),
    "times": (is_count, f"a whole number from 0 to {COUNT_MAX}"),
    "delay_ms": (lambda value: is_count(value) and value <= DELAY_MS_MAX, f"milliseconds, 0 to {DELAY_MS_MAX}"),
}


def check_fields(body: Json, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    for name in required:
        if name not in body:
            raise bad(f"the field {name} is missing")
    for name, value in body.items():
        if name not in required + optional:
            raise bad(f"unknown field {name!r}; it may have: {', '.join(required + optional)}")
        check, expected = CHECKS[name]
        if not check(value):
            raise bad(f"{name} must be {expected}")


def check_behaviour(told: Json, *required: str) -> None:
    check_fields(told, (*required, "operation", "mode"), ("times", "delay_ms"))
    if told["mode"] == "decline" and told["operation"] != "confirm":
        raise bad("only a confirm can be declined")


# ---- The database ---------------------------------------------------------------------------------------------------


def open_database(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.execute("BEGIN IMMEDIATE")  # of two providers that open one new file, the second waits and finds it made
    if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        for statement in SCHEMA.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    elif db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise sqlite3.DatabaseError("it is the database of something else")
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # survives kill -9 of this process, which is what the demo needs
    return db


class Store:
    """All state, and the only place that changes it; one transaction per request."""

    def __init__(self, db: sqlite3.Connection, settings: Settings) -> None:
        self._db = db
        self._settings = settings
        self._lock = threading.Lock()
        self._work: dict[str, Callable[[Post], Answer]] = {
            "reserve": self._reserve,
            "release": self._release,
            "intent": self._intent,
            "confirm": self._confirm,
            "void": self._void,
        }

    def close(self) -> None:
        """Ends after the request in hand. The lock is kept: a later request must not meet a closed database."""
        self._lock.acquire()
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One at a time, so requests with the same key come one after the other, in this process and any other."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _row(self, sql: str, *values: object) -> Json | None:
        row = self._db.execute(sql, values).fetchone()
        return dict(row) if row else None

    def _insert(self, table: str, prefix: str, *values: object) -> str:
        """Adds a row under the next id. Ids count up, which is safe inside the one transaction that may write."""
        name = f"{prefix}-{self._db.execute(f'SELECT coalesce(max(rowid), 0) + 1 FROM {table}').fetchone()[0]}"  # noqa: S608
        self._db.execute(f"INSERT INTO {table} VALUES (?{', ?' * len(values)})", (name, *values))  # noqa: S608
        return name

    def _intent_row(self, name: str) -> Json:
        if row := self._row("SELECT * FROM intents WHERE intent_id = ?", name):
            return row
        raise missing(f"intent {name!r}")

    def _reservation_row(self, name: str) -> Json:
        if row := self._row("SELECT * FROM reservations WHERE reservation_id = ?", name):
            return row
        raise missing(f"reservation {name!r}")

    # ---- One operation, from receipt to answer ----

    def post(self, path: str, header: str | None, raw: bytes) -> Answer:
        if path == "/behaviours":
            return self._behave(read_object(raw))
        for operation, (pattern, *_) in POSTS.items():
            if found := re.fullmatch(pattern, path):
                return self._operate(operation, unquote("".join(found.groups())), header, raw)
        raise missing(f"POST {path}")

    def _operate(self, operation: str, target: str, header: str | None, raw: bytes) -> Answer:
        order_id = key = None
        with self._transaction():
            try:
                post = self._understood(operation, target, header, raw)
                order_id, key = post.order_id, post.key
                answer = self._answer(post)
            except RefusedError as refused:
                answer = refused.answer
            entry = (operation, order_id, key, answer.status, answer.body.get("code"))
            self._db.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?)", entry)
        return answer

    def _understood(self, operation: str, target: str, header: str | None, raw: bytes) -> Post:
        key, body = read_key(header), read_object(raw)
        check_fields(body, *POSTS[operation][1:])
        if target:
            row = self._reservation_row(target) if operation == "release" else self._intent_row(target)
            if body.get("order_id", row["order_id"]) != row["order_id"]:
                raise bad(f"{target} belongs to the order {row['order_id']!r}")
        else:
            row = body
        if told := body.get("behaviour"):
            check_behaviour(told)
            self._tell("INSERT OR IGNORE", row["order_id"], told)  # sent again, it does not load its fault again
        return Post(operation, target, key, body, row["order_id"])

    def _answer(self, post: Post) -> Answer:
        faults = self._faults(post)
        delay_ms = faults.get("slow", 0)
        if "fail_before" in faults:
            return Answer(503, {"code": "TRY_AGAIN", "message": "nothing was done"}, delay_ms)
        answer = self._once(replace(post, declined="decline" in faults))
        if "fail_after" in faults or "drop_after" in faults:
            broken = {"code": "INTERNAL", "message": "it may have been done"}
            return Answer(500, broken, delay_ms, dropped="drop_after" in faults)
        return replace(answer, delay_ms=delay_ms)

    def _once(self, post: Post) -> Answer:
        """The work and its record are in the caller's transaction: both are kept, or neither."""
        stored = self._row("SELECT * FROM operations WHERE key = ?", post.key)
        if stored and not self._settings.ignore_keys:
            if stored["request_hash"] != post.hash():
                raise RefusedError(409, "IDEMPOTENCY_CONFLICT", f"the key {post.key!r} was used for another request")
            return Answer(stored["status"], json.loads(stored["response"]))
        try:
            answer = self._work[post.operation](post)
        except RefusedError as refused:  # the work refuses before it writes: there is nothing to take back
            answer = refused.answer
        record = (post.key, post.operation, post.hash(), answer.status, json.dumps(answer.body))
        # A bad provider meets the key again; it keeps the first outcome, so that a look-up stays the same.
        self._db.execute("INSERT OR IGNORE INTO operations VALUES (?, ?, ?, ?, ?)", record)
        return answer

    # ---- Faults ----

    def _behave(self, told: Json) -> Answer:
        check_behaviour(told, "order_id")
        with self._transaction():
            self._tell("INSERT OR REPLACE", told["order_id"], told)
        return Answer(200, {"times": 1, "delay_ms": DELAY_MS_DEFAULT} | told)

    def _tell(self, verb: str, order_id: str, told: Json) -> None:
        times, delay_ms = told.get("times", 1), told.get("delay_ms", DELAY_MS_DEFAULT)
        row = (order_id, told["operation"], told["mode"], times, delay_ms)
        self._db.execute(f"{verb} INTO behaviours VALUES (?, ?, ?, ?, ?)", row)

    def _faults(self, post: Post) -> dict[str, int]:
        """The faults that hit this request, with their delays; they are used up here, so a restart loads none again."""
        of = (post.order_id, post.operation)
        told = "SELECT mode, delay_ms FROM behaviours WHERE order_id = ? AND operation = ? AND remaining > 0"
        faults: dict[str, int] = {row["mode"]: row["delay_ms"] for row in self._db.execute(told, of)}
        if "fail_before" in faults:  # the others keep for a request that gets as far as the work
            faults = {mode: delay_ms for mode, delay_ms in faults.items() if mode in ("fail_before", "slow")}
        use_up = "UPDATE behaviours SET remaining = remaining - 1 WHERE order_id = ? AND operation = ? AND mode = ?"
        self._db.executemany(use_up, [(*of, mode) for mode in faults])
        return faults | self._faults_of_flags(post)

    def _faults_of_flags(self, post: Post) -> dict[str, int]:
        before, after = self._settings.fail_before, self._settings.fail_after
        if post.operation != "confirm" or not before + after:
            return {}
        earlier = COUNTS["requests"] + " AND order_id = ?"
        count = self._db.execute(earlier, (post.order_id,)).fetchone()[0]
        if count < before:
            return {"fail_before": 0}
        return {"fail_after": 0} if count < before + after else {}

    # ---- The work: each checks first and writes last ----

    def _reserve(self, post: Post) -> Answer:
        sku, quantity = post.body["sku"], post.body["quantity"]
        available = self._stock(sku)["available"]
        if sku == "OUT-OF-STOCK" or available < quantity:
            raise RefusedError(409, "OUT_OF_STOCK", f"there are not {quantity} of {sku!r}")
        self._db.execute("INSERT OR REPLACE INTO stock VALUES (?, ?)", (sku, available - quantity))
        name = self._insert("reservations", "rs", post.order_id, sku, quantity, "open")
        return Answer(201, self._reservation_row(name))

    def _release(self, post: Post) -> Answer:
        row = self._reservation_row(post.target)
        if row["status"] == "open":
            back = (row["quantity"], row["sku"])
            self._db.execute("UPDATE stock SET available = available + ? WHERE sku = ?", back)
            self._db.execute("UPDATE reservations SET status = 'released' WHERE reservation_id = ?", (post.target,))
        return Answer(200, self._reservation_row(post.target))

    def _intent(self, post: Post) -> Answer:
        body = post.body
        values = (post.order_id, body["amount"], body["currency"], body.get("card", "ok"), "created")
        return Answer(201, self._intent_row(self._insert("intents", "pi", *values)))

    def _confirm(self, post: Post) -> Answer:
        row = self._intent_row(post.target)
        if row["status"] == "voided":
            raise RefusedError(409, "INTENT_VOIDED", f"{post.target} was voided")
        if row["status"] == "captured" and not self._settings.ignore_keys:
            raise RefusedError(409, "INTENT_CAPTURED", f"{post.target} was paid under another idempotency key")
        if post.declined or row["card"] == "declined":
            raise RefusedError(402, "CARD_DECLINED", "the card was declined")
        self._db.execute("UPDATE intents SET status = 'captured' WHERE intent_id = ?", (post.target,))
        values = (post.target, post.order_id, row["amount"], row["currency"], "captured")
        name = self._insert("payments", "pay", *values)
        return Answer(200, self._row("SELECT * FROM payments WHERE payment_id = ?", name) or {})

    def _void(self, post: Post) -> Answer:
        if self._intent_row(post.target)["status"] == "captured":
            raise RefusedError(409, "INTENT_CAPTURED", f"{post.target} is paid; a payment cannot be voided")
        self._db.execute("UPDATE intents SET status = 'voided' WHERE intent_id = ?", (post.target,))
        return Answer(200, self._intent_row(post.target))

    # ---- Look-ups ----

    def get(self, path: str, query: str) -> Answer:
        kind, _, name = path[1:].partition("/")
        with self._transaction():
            return Answer(200, self._look_up(kind, unquote(name), parse_qs(query)))

    def _look_up(self, kind: str, name: str, query: dict[str, list[str]]) -> Json:
        match kind, name:
            case "health", "":
                return {"status": "ok"}
            case "stats", "":
                return self._stats()
            case "operations", _ if name:
                return self._operation(name)
            case "intents", _ if name:
                return self._intent_row(name)
            case "reservations", _ if name:
                return self._reservation_row(name)
            case "stock", _ if name:
                return self._stock(name)
            case "payments", "" if "order_id" in query:
                of = "SELECT * FROM payments WHERE order_id = ? ORDER BY rowid"
                return {"payments": [dict(row) for row in self._db.execute(of, (query["order_id"][0],))]}
        raise missing(f"GET /{kind}/{name}; payments are at /payments?order_id=ID")

    def _operation(self, key: str) -> Json:
        row = self._row("SELECT key, operation, status, response FROM operations WHERE key = ?", key)
        if not row:
            raise missing(f"operation under the key {key!r}")
        return row | {"response": json.loads(row["response"])}

    def _stock(self, sku: str) -> Json:
        row = self._row("SELECT available FROM stock WHERE sku = ?", sku)
        return {"sku": sku, "available": row["available"] if row else STOCK_INITIAL, "initial": STOCK_INITIAL}

    def _stats(self) -> Json:
        orders: dict[str, dict[str, int]] = {}
        for name, sql in PER_ORDER.items():
            for order_id, count in self._db.execute(sql):
                orders.setdefault(order_id, dict.fromkeys(PER_ORDER, 0))[name] = count
        return {name: self._db.execute(sql).fetchone()[0] for name, sql in COUNTS.items()} | {"per_order": orders}


# ---- HTTP -----------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Carries requests to the store and answers back; each answer leaves in one packet."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_S_MAX
    server: Server

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self._reply(lambda: self.server.store.get(path, query))

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        self._reply(lambda: self.server.store.post(path, self.headers["Idempotency-Key"], self._body()))

    def _reply(self, produce: Callable[[], Answer]) -> None:
        try:
            answer = produce()
        except RefusedError as refused:
            answer = refused.answer
        except sqlite3.OperationalError as error:  # another process holds the file, or the disk is full
            answer = Answer(503, {"code": "TRY_AGAIN", "message": f"nothing was done: {error}"})
        if answer.delay_ms:
            time.sleep(answer.delay_ms / 1000)
        if answer.dropped:
            self.close_connection = True
        else:
            self._send(answer)

    def _body(self) -> bytes:
        length = self.headers["Content-Length"] or "0"
        known = re.fullmatch("[0-9]{1,9}", length) and "Transfer-Encoding" not in self.headers
        if not known or int(length) > BODY_BYTES_MAX:
            self.close_connection = True  # what follows on the line is no request
            raise bad(f"send a body with Content-Length of at most {BODY_BYTES_MAX} bytes")
        raw = self.rfile.read(int(length))
        if len(raw) < int(length):
            raise ConnectionError("the request broke off")
        return raw

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body) + "\n"  # ASCII only, so characters are bytes
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"Connection: {'close' if self.close_connection else 'keep-alive'}",
        ]
        self.wfile.write("\r\n".join([*lines, "", body]).encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses (a broken request line, an unknown method), in our form."""
        self.close_connection = True
        self._send(Answer(code, {"code": "BAD_REQUEST", "message": message or explain or "not understood"}))

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the journal is in the database."""


class Server(ThreadingHTTPServer):
    """A thread per connection."""

    daemon_threads = True  # an idle connection must not hold up the end
    request_queue_size = 1024  # with the default of 5, a burst of clients waits a second for the kernel's retry

    def __init__(self, host: str, port: int, store: Store) -> None:
        self.store = store
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Without the base class's look-up of the host's name, which can hang where there is no network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that was killed is no news here
            super().handle_error(request, client_address)


# ---- The process ----------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """One line for a wrong flag."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"provider: {message}\n")


def up_to(maximum: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) > maximum:
            raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 to {maximum}")
        return int(value)

    return read


def read_flags(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="provider", description="The stock and payment provider of the order demo.", allow_abbrev=False
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address it listens on (default: 127.0.0.1)")
    parser.add_argument("--port", type=up_to(65_535), default=8765, help="0 takes a free one (default: 8765)")
    parser.add_argument("--db", default="provider.db", metavar="FILE", help="its SQLite file (default: provider.db)")
    parser.add_argument("--ignore-keys", action="store_true", help="do the work again for a key seen before")
    for when in ("before", "after"):
        text = f"fail {when} the work in the first N confirm requests of every order"
        parser.add_argument(f"--fail-{when}", type=up_to(COUNT_MAX), default=0, metavar="N", help=text)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    flags = read_flags(arguments)
    endings = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, endings)  # before any thread, so that only `sigwait` gets them
    try:
        store = Store(open_database(flags.db), Settings(flags.ignore_keys, flags.fail_before, flags.fail_after))
        server = Server(flags.host, flags.port, store)
    except sqlite3.Error as error:
        print(f"provider: cannot use {flags.db} as its database: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"provider: cannot listen on {flags.host}:{flags.port}: {error.strerror}", file=sys.stderr)
        return 1
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    print(f"provider listening on http://{flags.host}:{server.server_port}", flush=True)
    signal.sigwait(endings)
    server.shutdown()
    server.server_close()
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
