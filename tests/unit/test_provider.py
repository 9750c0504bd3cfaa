"""The provider of the order demo, as a real process: it judges "one payment", so it must itself be beyond doubt."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


client = load(EXAMPLES / "provider_client.py")


class Provider:
    def __init__(self, db: Path, *flags: str, port: int = 0) -> None:
        command = [sys.executable, str(EXAMPLES / "provider.py"), "--port", str(port), "--db", str(db), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("provider listening on http://127.0.0.1:"), self.process.stderr.read()
        self.port = int(line.rsplit(":", 1)[1])

    def ask(self, method: str, path: str, body: object = None, key: str | None = None, **headers: str):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, headers | ({"Idempotency-Key": key} if key else {}))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        assert content.count(b"\n") == 1
        return response.status, json.loads(content)

    def get(self, path: str):
        status, body = self.ask("GET", path)
        assert status == 200
        return body

    def post(self, path: str, body: object = None, key: str | None = None):
        return self.ask("POST", path, body or {}, key)

    def behave(self, order_id: str, operation: str, mode: str, **more: int) -> None:
        body = {"order_id": order_id, "operation": operation, "mode": mode, **more}
        assert self.post("/behaviours", body)[0] == 200

    def intent(self, order_id: str, **more: object) -> str:
        body = {"order_id": order_id, "amount": "12.50", "currency": "EUR", **more}
        status, intent = self.post("/intents", body, f"intent/{order_id}")
        assert (status, intent["status"]) == (201, "created")
        return f"/intents/{intent['intent_id']}"

    def confirm(self, intent: str, key: str | None = None, body: object = None):
        return self.post(f"{intent}/confirm", body, key or f"confirm{intent}")

    def count(self, order_id: str) -> tuple[int, int]:
        counts = self.get("/stats")["per_order"].get(order_id, {"requests": 0, "payments": 0})
        assert len(self.get(f"/payments?order_id={quote(order_id)}")["payments"]) == counts["payments"]
        return counts["requests"], counts["payments"]

    def wait_for_payment(self, order_id: str) -> None:
        deadline = time.monotonic() + 10
        while not self.get(f"/payments?order_id={order_id}")["payments"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path):
    started = []

    def starter(*flags: str, port: int = 0) -> Provider:
        started.append(Provider(tmp_path / "provider.db", *flags, port=port))
        return started[-1]

    yield starter
    for provider in started:
        provider.process.kill()
        provider.process.communicate(timeout=10)


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    """One for the tests that look only at orders of their own."""
    provider = Provider(tmp_path_factory.mktemp("provider") / "provider.db")
    yield provider
    assert provider.end() == (0, "", "")  # no traceback in all these tests


# ---- The work ----


def test_an_order_goes_through(start):
    provider = start()
    status, reservation = provider.post("/reservations", {"order_id": "o", "sku": "茶 1", "quantity": 3}, "reserve/o")
    assert status == 201
    assert reservation.pop("reservation_id").startswith("rs-")
    assert reservation == {"order_id": "o", "sku": "茶 1", "quantity": 3, "status": "open"}
    intent = provider.intent("o")
    assert provider.count("o") == (0, 0)
    status, payment = provider.confirm(intent)
    assert (status, payment["status"], payment["amount"], payment["currency"]) == (200, "captured", "12.50", "EUR")
    assert provider.get("/payments?order_id=o") == {"payments": [payment]}
    assert provider.get(intent)["status"] == "captured"
    stats = {"requests": 1, "payments": 1, "intents": 1, "voided": 0, "reservations": 1, "released": 0}
    stats |= {"conflicts": 0, "second_keys": 0, "per_order": {"o": {"requests": 1, "payments": 1}}}
    assert provider.get("/stats") == stats


def test_a_release_gives_the_stock_back_once(provider):
    _, reservation = provider.post("/reservations", {"order_id": "rel", "sku": "tea", "quantity": 3}, "reserve/rel")
    path = f"/reservations/{reservation['reservation_id']}"
    before = provider.get("/stock/tea")
    assert before["available"] == before["initial"] - 3
    for key in ("release/rel", "release/rel", "another key"):
        assert provider.post(f"{path}/release", {}, key) == (200, reservation | {"status": "released"})
        assert provider.get("/stock/tea")["available"] == before["initial"]
    assert provider.get(path)["status"] == "released"


@pytest.mark.parametrize(("sku", "quantity"), [("OUT-OF-STOCK", 1), ("rare", 999_999)])
def test_stock_runs_out(provider, sku, quantity):
    provider.post("/reservations", {"order_id": "first", "sku": sku, "quantity": 2}, f"first/{sku}")
    status, body = provider.post("/reservations", {"order_id": "x", "sku": sku, "quantity": quantity}, f"stock/{sku}")
    assert (status, body["code"]) == (409, "OUT_OF_STOCK")


def test_a_voided_intent_cannot_be_confirmed(provider):
    intent = provider.intent("void")
    for key in ("void/void", "void/void", "void/again"):
        assert provider.post(f"{intent}/void", {}, key)[1]["status"] == "voided"
    status, body = provider.confirm(intent)
    assert (status, body["code"]) == (409, "INTENT_VOIDED")
    assert provider.count("void") == (1, 0)


def test_a_payment_cannot_be_voided(provider):
    intent = provider.intent("paid")
    provider.confirm(intent)
    status, body = provider.post(f"{intent}/void", {}, "void/paid")
    assert (status, body["code"]) == (409, "INTENT_CAPTURED")
    assert provider.get(intent)["status"] == "captured"


def test_a_second_key_makes_no_second_payment_and_is_counted(provider):
    intent = provider.intent("second")
    provider.confirm(intent, "one")
    before = provider.get("/stats")["second_keys"]
    status, body = provider.confirm(intent, "two")
    assert (status, body["code"]) == (409, "INTENT_CAPTURED")
    assert provider.count("second") == (2, 1)
    assert provider.get("/stats")["second_keys"] == before + 1


def test_a_declined_card_stays_declined(provider):
    intent = provider.intent("card", card="declined")
    for key in ("card/1", "card/1", "card/2"):
        assert provider.confirm(intent, key)[1]["code"] == "CARD_DECLINED"
    assert provider.count("card") == (3, 0)


# ---- Idempotency keys ----


def test_the_same_request_gets_the_stored_answer(provider):
    body = {"order_id": "same", "amount": "5", "currency": "EUR"}
    first = provider.post("/intents", body, "same")
    assert provider.post("/intents", dict(reversed(body.items())), "same") == first
    intent = f"/intents/{first[1]['intent_id']}"
    paid = provider.confirm(intent)
    assert paid == provider.confirm(intent)
    assert provider.count("same") == (2, 1)


@pytest.mark.parametrize(
    ("path", "change"),
    [("/intents", {"amount": "5.00"}), ("/intents", {"order_id": "other"}), ("/intents", {"card": "ok"})],
)
def test_the_same_key_for_another_body_is_a_conflict(provider, path, change):
    body = {"order_id": "conflict", "amount": "5", "currency": "EUR"}
    first = provider.post("/intents", body, "conflict")
    before = provider.get("/stats")
    status, answer = provider.post(path, body | change, "conflict")
    assert (status, answer["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    after = provider.get("/stats")
    assert (after["conflicts"], after["intents"]) == (before["conflicts"] + 1, before["intents"])
    assert provider.post("/intents", body, "conflict") == first


def test_the_same_key_for_another_intent_is_a_conflict(provider):
    one, two = provider.intent("two-1"), provider.intent("two-2")
    assert provider.confirm(one, "shared")[0] == 200
    assert provider.confirm(two, "shared")[1]["code"] == "IDEMPOTENCY_CONFLICT"
    assert provider.count("two-2") == (1, 0)


def test_requests_with_one_key_at_once_make_one_payment(provider):
    intent = provider.intent("at-once")
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: provider.confirm(intent, "at-once"), range(64)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 200
    assert provider.count("at-once") == (64, 1)


def test_two_processes_on_one_database_make_one_payment(start):
    providers = [start(), start()]
    intent = providers[0].intent("shared")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: providers[n % 2].confirm(intent), range(32)))
    assert all(answer == answers[0] for answer in answers)
    assert providers[1].count("shared") == (32, 1)


def test_what_was_not_understood_leaves_the_key_free(provider):
    body = {"order_id": "free", "amount": "5", "currency": "EUR"}
    assert provider.post("/intents", body | {"amount": "-5"}, "free")[0] == 400
    assert provider.post("/intents/pi-999999/confirm", {}, "free")[0] == 404
    assert provider.post("/intents", body, "free")[0] == 201


def test_an_operation_is_found_by_its_key(provider):
    key = "pay/订单 1?#%2F/ü"
    intent = provider.intent("lookup")
    assert provider.ask("GET", f"/operations/{quote(key, safe='')}")[0] == 404
    status, payment = provider.confirm(intent, quote(key))
    found = {"key": key, "operation": "confirm", "status": status, "response": payment}
    assert provider.get(f"/operations/{quote(key, safe='')}") == found
    assert provider.get(f"/operations/{quote(key)}") == found  # slashes may stay


def test_refusals_of_the_business_are_found_by_their_key(provider):
    provider.confirm(provider.intent("no-card", card="declined"), "no-card")
    found = provider.get("/operations/no-card")
    assert (found["status"], found["response"]["code"]) == (402, "CARD_DECLINED")


# ---- Faults ----


def test_fail_before_does_nothing_n_times(provider):
    intent = provider.intent("before")
    provider.behave("before", "confirm", "fail_before", times=2)
    for _ in range(2):
        assert provider.confirm(intent)[0] == 503
        assert provider.ask("GET", f"/operations/{quote('confirm' + intent, safe='')}")[0] == 404
    assert provider.confirm(intent)[0] == 200
    assert provider.count("before") == (3, 1)


def test_fail_after_does_the_work_and_says_nothing(provider):
    intent = provider.intent("after")
    provider.behave("after", "confirm", "fail_after", times=2)
    for _ in range(2):
        assert provider.confirm(intent)[0] == 500
        assert provider.count("after")[1] == 1
    found = provider.get(f"/operations/{quote('confirm' + intent, safe='')}")
    assert provider.confirm(intent) == (200, found["response"])
    assert provider.count("after") == (3, 1)


def test_drop_after_does_the_work_and_hangs_up(provider):
    intent = provider.intent("drop")
    provider.behave("drop", "confirm", "drop_after")
    with pytest.raises(RemoteDisconnected):
        provider.confirm(intent)
    assert provider.count("drop") == (1, 1)
    assert provider.confirm(intent)[0] == 200
    assert provider.count("drop") == (2, 1)


def test_decline_is_an_answer_and_is_stored(provider):
    intent = provider.intent("decline")
    provider.behave("decline", "confirm", "decline")
    for _ in range(2):
        status, body = provider.confirm(intent)
        assert (status, body["code"]) == (402, "CARD_DECLINED")
    assert provider.confirm(intent, "another card")[0] == 200
    assert provider.count("decline") == (3, 1)


def test_slow_waits_after_the_work_and_holds_up_no_other(provider):
    intent = provider.intent("slow")
    provider.behave("slow", "confirm", "slow", delay_ms=1_500)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(provider.confirm, intent)
        provider.wait_for_payment("slow")
        assert not answer.done()
        assert answer.result()[0] == 200
    assert time.monotonic() - began >= 1.5


def test_faults_in_sequence(provider):
    intent = provider.intent("both")
    provider.behave("both", "confirm", "fail_after")
    provider.behave("both", "confirm", "fail_before")
    assert [provider.confirm(intent)[0] for _ in range(3)] == [503, 500, 200]
    assert provider.count("both") == (3, 1)


def test_a_behaviour_in_a_body_is_taken_up_once(provider):
    told = {"operation": "confirm", "mode": "fail_before", "times": 1}
    intent = provider.intent("body", behaviour=told)
    body = {"order_id": "body", "behaviour": told}
    assert [provider.confirm(intent, body=body)[0] for _ in range(3)] == [503, 200, 200]


def test_a_behaviour_in_the_body_of_its_own_operation(provider):
    told = {"operation": "intent", "mode": "fail_after"}
    body = {"order_id": "own", "amount": "1", "currency": "EUR", "behaviour": told}
    before = provider.get("/stats")["intents"]
    assert [provider.post("/intents", body, "own")[0] for _ in range(2)] == [500, 201]
    assert provider.get("/stats")["intents"] == before + 1


@pytest.mark.parametrize("operation", ["reserve", "release", "intent", "void"])
def test_every_operation_can_fail(provider, operation):
    order = f"every-{operation}"
    provider.behave(order, operation, "fail_before")
    stock = {"order_id": order, "sku": "tea", "quantity": 1}
    money = {"order_id": order, "amount": "1", "currency": "EUR"}
    reserved = [provider.post("/reservations", stock, f"{order}/r") for _ in range(2)][-1][1]
    intended = [provider.post("/intents", money, f"{order}/i") for _ in range(2)][-1][1]
    released = [provider.post(f"/reservations/{reserved['reservation_id']}/release", {}, f"{order}/l")[0]]
    voided = [provider.post(f"/intents/{intended['intent_id']}/void", {}, f"{order}/v")[0]]
    assert released + voided == [503 if operation == name else 200 for name in ("release", "void")]


def test_flags_fail_the_first_confirms_of_every_order(start):
    provider = start("--fail-before", "2", "--fail-after", "1")
    for order in ("a", "b"):
        intent = provider.intent(order)
        assert [provider.confirm(intent)[0] for _ in range(4)] == [503, 503, 500, 200]
        assert provider.count(order) == (4, 1)


def test_a_provider_that_ignores_keys_takes_the_money_again(start):
    provider = start("--ignore-keys")
    intent = provider.intent("bad")
    first = provider.confirm(intent, "pay/bad")
    second = provider.confirm(intent, "pay/bad")
    assert (first[0], second[0]) == (200, 200)
    assert first[1]["payment_id"] != second[1]["payment_id"]
    assert provider.count("bad") == (2, 2)
    assert provider.intent("bad") != intent
    assert provider.post("/intents", {"order_id": "x", "amount": "1", "currency": "EUR"}, "pay/bad")[0] == 201
    # A look-up still finds what happened first, so a task that asks before it tries again pays once.
    assert provider.get("/operations/pay%2Fbad")["response"] == first[1]
    assert provider.get("/stats")["conflicts"] == 0


def test_with_keys_ignored_a_look_up_finds_the_work_of_a_failed_answer(start):
    provider = start("--ignore-keys", "--fail-after", "1")
    intent = provider.intent("bad")
    assert provider.confirm(intent, "pay/bad")[0] == 500
    assert provider.get("/operations/pay%2Fbad")["response"] in provider.get("/payments?order_id=bad")["payments"]
    assert provider.count("bad") == (1, 1)


# ---- Ends and restarts ----


def test_kill_and_restart_keep_everything(start):
    provider = start()
    intent = provider.intent("kill")
    provider.behave("kill", "confirm", "fail_after", times=2)
    assert provider.confirm(intent)[0] == 500
    stats = provider.get("/stats")
    provider.end(signal.SIGKILL)
    provider = start(port=provider.port)  # the same address at once
    assert provider.get("/stats") == stats
    assert [provider.confirm(intent)[0] for _ in range(2)] == [500, 200]
    assert provider.count("kill") == (3, 1)


def test_killed_under_load_it_has_every_answer_it_gave(start):
    provider = start()
    intents = [provider.intent(f"load-{n}") for n in range(200)]

    def confirm(intent: str):
        try:
            answer = provider.confirm(intent)
        except (OSError, RemoteDisconnected):
            return intent, None
        if intent == intents[40]:
            provider.process.kill()
        return intent, answer

    with ThreadPoolExecutor(4) as pool:
        answered = {intent: answer for intent, answer in pool.map(confirm, intents) if answer}
    assert 30 < len(answered) < 200
    provider = start()
    for intent in intents:
        again = provider.confirm(intent)
        assert again == answered.get(intent, again)
    stats = provider.get("/stats")
    assert stats["payments"] == 200
    assert all(count["payments"] == 1 for count in stats["per_order"].values())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly(start, how):
    provider = start()
    idle = HTTPConnection("127.0.0.1", provider.port, timeout=10)
    idle.request("GET", "/health")
    idle.getresponse().read()
    assert provider.end(how) == (0, "", "")
    idle.close()


def test_clients_that_go_away_are_no_error(start):
    provider = start()
    intent = provider.intent("gone")
    provider.behave("gone", "confirm", "slow", delay_ms=200)
    for sent in (b"", b"GET", b"POST /intents HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", provider.port)) as line:
            line.sendall(sent)
    with socket.create_connection(("127.0.0.1", provider.port)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets, as after a kill
        line.sendall(f"POST {intent}/confirm HTTP/1.1\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n".encode())
        provider.wait_for_payment("gone")
    time.sleep(0.3)
    assert provider.end() == (0, "", "")


# ---- Bad input ----

INTENT = {"order_id": "bad", "amount": "1", "currency": "EUR"}
RESERVATION = {"order_id": "bad", "sku": "tea", "quantity": 1}
BEHAVIOUR = {"order_id": "bad", "operation": "confirm", "mode": "slow"}


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/intents", b"\xff", "JSON"),
        ("/intents", b"{", "JSON"),
        ("/intents", b"[" * 50_000, "JSON"),
        ("/intents", b"[]", "object"),
        ("/intents", b"", "order_id is missing"),
        *(("/intents", INTENT | {"amount": value}, "amount must be") for value in (1, 1.5, "0", "0.00", "-1", "1e3")),
        *(
            ("/intents", INTENT | {"amount": value}, "amount must be")
            for value in ("NaN", "", "\u0661", "1.", None, [])
        ),
        *(("/intents", INTENT | {"currency": value}, "currency must be") for value in ("eur", "EURO", 7, {})),
        *(("/intents", INTENT | {"order_id": value}, "order_id must be") for value in ("", "a\0", "\ud800", "x" * 201)),
        ("/intents", INTENT | {"card": "visa"}, "card must be"),
        ("/intents", INTENT | {"amuont": "1"}, "unknown field 'amuont'; it may have: order_id, amount"),
        ("/intents", INTENT | {"behaviour": "slow"}, "behaviour must be"),
        ("/intents", INTENT | {"behaviour": {"operation": "confirm", "mode": "explode"}}, "mode must be one of"),
        ("/intents", INTENT | {"behaviour": {"operation": "intent", "mode": "decline"}}, "only a confirm"),
        *(
            ("/reservations", RESERVATION | {"quantity": value}, "quantity must be")
            for value in (0, -1, True, "1", 1.0)
        ),
        ("/reservations", RESERVATION | {"quantity": 10**30}, "quantity must be"),
        ("/behaviours", BEHAVIOUR | {"operation": "pay"}, "operation must be one of"),
        ("/behaviours", BEHAVIOUR | {"times": -1}, "times must be"),
        ("/behaviours", BEHAVIOUR | {"delay_ms": 10**9}, "delay_ms must be"),
        ("/behaviours", {"operation": "confirm", "mode": "slow"}, "order_id is missing"),
    ],
)
def test_bad_bodies(provider, path, body, says):
    before = provider.get("/stats")
    status, answer = provider.ask("POST", path, body, "bad")
    assert (status, answer["code"]) == (400, "BAD_REQUEST")
    assert says in answer["message"]
    assert provider.get("/stats") == before


@pytest.mark.parametrize("key", [None, "", "k" * 301])
def test_bad_keys(provider, key):
    status, answer = provider.ask("POST", "/intents", INTENT, key)
    assert (status, answer["code"]) == (400, "BAD_REQUEST")
    assert "Idempotency-Key" in answer["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/intents"),
        ("GET", "/intents/pi-999999"),
        ("GET", "/intents/%00"),
        ("GET", "/reservations/rs-999999"),
        ("GET", "/operations/nothing"),
        ("GET", "/operations/"),
        ("GET", "/payments"),
        ("GET", "/stats/x"),
        ("POST", "/"),
        ("POST", "/payments"),
        ("POST", "/intents/pi-999999/confirm"),
        ("POST", "/intents/pi-999999/void"),
        ("POST", "/reservations/pi-1/release"),
    ],
)
def test_unknown_paths(provider, method, path):
    status, answer = provider.ask(method, path, {} if method == "POST" else None, "unknown")
    assert (status, answer["code"]) == (404, "NOT_FOUND")


def test_confirms_that_fail_are_counted_too(provider):
    before = provider.get("/stats")["requests"]
    intent = provider.intent("failed")
    provider.confirm("/intents/pi-999999")
    provider.confirm(intent, body={"order_id": "not this one"})
    provider.ask("POST", f"{intent}/confirm", b"{", "k")
    provider.ask("POST", f"{intent}/confirm", {})
    assert provider.get("/stats")["requests"] == before + 4
    assert provider.get(intent)["status"] == "created"


@pytest.mark.parametrize("length", ["-1", "x", "65537", "1" * 30])
def test_bad_lengths(provider, length):
    status, answer = provider.ask("POST", "/intents", key="k", **{"Content-Length": length})
    assert (status, answer["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize(("method", "path"), [("PUT", "/intents"), ("DELETE", "/intents"), ("GET", "/" + "x" * 70_000)])
def test_what_http_refuses_is_json_too(provider, method, path):
    status, answer = provider.ask(method, path)
    assert status >= 400
    assert answer["code"] == "BAD_REQUEST"


# ---- The command ----


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "provider.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "x"],
        ["--port", "65536"],
        ["--port", "-1"],
        ["--port"],
        ["--fail-before", "1.5"],
        ["--ignore"],
        ["order"],
    ],
)
def test_wrong_flags_are_one_line_and_exit_2(arguments):
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("provider: ")


def test_a_port_in_use_is_one_line_and_exit_1(start, tmp_path):
    port = str(start().port)
    done = run("--port", port, "--db", str(tmp_path / "other.db"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert port in done.stderr


def test_a_file_that_is_no_database_of_ours_is_left_alone(tmp_path):
    garbage, foreign = tmp_path / "garbage.db", tmp_path / "foreign.db"
    garbage.write_bytes(b"not a database" * 100)
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE runs (id)")
    db.close()
    for path in (garbage, foreign, tmp_path, tmp_path / "none" / "x.db"):
        before = path.read_bytes() if path.is_file() else None
        done = run("--port", "0", "--db", str(path))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert str(path) in done.stderr
        assert before is None or path.read_bytes() == before


# ---- The client ----


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://localhost:{}/"])
def test_client_addresses(provider, monkeypatch, form):
    monkeypatch.setenv("ORDERS_PROVIDER", form.format(provider.port))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert client.get("/health") == {"status": "ok"}


def test_client_errors_say_what_to_do(provider, monkeypatch):
    monkeypatch.setenv("ORDERS_PROVIDER", f"127.0.0.1:{provider.port}")
    key = "pay/订单\n1"
    body = {"order_id": "client", "amount": "1", "currency": "EUR"}
    intent = f"/intents/{client.post('/intents', body, key='intent/client')['intent_id']}"
    provider.behave("client", "confirm", "fail_before")
    with pytest.raises(client.ProviderError) as failed:
        client.post(f"{intent}/confirm", {}, key=key)
    assert (failed.value.status, failed.value.code) == (503, "TRY_AGAIN")
    provider.behave("client", "confirm", "drop_after")
    with pytest.raises(client.ProviderError) as dropped:
        client.post(f"{intent}/confirm", {}, key=key)
    assert (dropped.value.status, dropped.value.code) == (0, "NO_ANSWER")
    payment = client.post(f"{intent}/confirm", {}, key=key)
    assert client.get(f"/operations/{quote(key, safe='')}")["response"] == payment
    with pytest.raises(client.ProviderRefused) as refused:
        client.post(f"{intent}/confirm", {}, key="other")
    assert (refused.value.status, refused.value.code) == (409, "INTENT_CAPTURED")
    assert not isinstance(refused.value, client.ProviderError)
    for error in (failed.value, dropped.value, refused.value):
        assert type(error)(*error.args).args == error.args


def test_client_without_a_provider_says_how_to_start_it(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("ORDERS_PROVIDER", f"127.0.0.1:{port}")
    with pytest.raises(client.ProviderUnavailable, match=f"python examples/provider.py --port {port} --db provider.db"):
        client.get("/health")


@pytest.mark.parametrize("address", ["http://", "ftp://127.0.0.1:1", "127.0.0.1:x", "http://[", "http://127.0.0.1/v1"])
def test_client_with_a_wrong_address_says_so(monkeypatch, address):
    monkeypatch.setenv("ORDERS_PROVIDER", address)
    with pytest.raises(client.ProviderUnavailable, match="ORDERS_PROVIDER"):
        client.get("/health")


def test_client_knows_its_default(monkeypatch):
    monkeypatch.delenv("ORDERS_PROVIDER", raising=False)
    assert client._address() == ("127.0.0.1", 8765)
    monkeypatch.setenv("ORDERS_PROVIDER", "")
    assert client._address() == ("127.0.0.1", 8765)


# ---- The data ----


def total(order) -> Decimal:
    return sum((item["quantity"] * Decimal(item["unit_price"]) for item in order["items"]), Decimal(0))


def test_the_file_is_what_the_script_makes():
    made = load(EXAMPLES / "data" / "make_orders.py").content()
    assert (EXAMPLES / "data" / "orders.jsonl").read_text(encoding="utf-8") == made


def test_the_data_has_every_kind_of_order():
    lines = (EXAMPLES / "data" / "orders.jsonl").read_text(encoding="utf-8").splitlines()
    orders = [json.loads(line) for line in lines]
    assert [order["order_id"] for order in orders] == [f"o-{n:04}" for n in range(1, 201)]
    above = [order for order in orders if total(order) > 1000]
    below = [order for order in orders if total(order) <= 1000]
    assert len(above) >= 40
    assert {"1000.00", "1000.01"} <= {str(total(order)) for order in orders}
    modes = Counter(order["behaviour"]["mode"] for order in below if order["behaviour"])
    assert modes["fail_before"] >= 10
    assert modes["fail_after"] >= 10
    assert modes["drop_after"] >= 1
    assert {order["behaviour"]["mode"] for order in above if order["behaviour"]} == {"fail_before", "fail_after"}
    assert sum(order["card"] == "declined" for order in below) >= 10
    items = [item for order in orders for item in order["items"]]
    assert sum(item["quantity"] == 0 for item in items) == 3
    assert sum(item["sku"] == "OUT-OF-STOCK" for item in items) == 2
    assert len({item["quantity"] for item in items}) >= 5
    assert {"0.99", "1200.00", "12.5", "12.50", "3", "0.333"} <= {item["unit_price"] for item in items}
    assert sum(not order["customer"].isascii() for order in orders) >= 50
    for order in orders:
        assert len({item["sku"] for item in order["items"]}) == len(order["items"]) > 0


def test_the_provider_takes_every_valid_order(start, monkeypatch):
    """The whole file, as a plain loop with one retry: what the engine must reach too, whatever is killed."""
    provider = start()
    monkeypatch.setenv("ORDERS_PROVIDER", f"127.0.0.1:{provider.port}")
    ends = Counter()
    for line in (EXAMPLES / "data" / "orders.jsonl").read_text(encoding="utf-8").splitlines():
        order = json.loads(line)
        if all(item["quantity"] for item in order["items"]):
            ends[run_order(order)] += 1
    assert ends == {"captured": 182, "CARD_DECLINED": 13, "OUT_OF_STOCK": 2}
    stats = provider.get("/stats")
    assert (stats["payments"], stats["conflicts"], stats["second_keys"]) == (182, 0, 0)
    assert all(count["payments"] <= 1 for count in stats["per_order"].values())


def run_order(order) -> str:
    order_id = order["order_id"]
    try:
        for item in order["items"]:
            body = {"order_id": order_id, "sku": item["sku"], "quantity": item["quantity"]}
            client.post("/reservations", body, key=f"reserve/{order_id}/{item['sku']}")
        body = {"order_id": order_id, "amount": str(total(order)), "currency": order["currency"]}
        body |= {"card": order["card"], "behaviour": order["behaviour"]}
        intent = client.post("/intents", body, key=f"intent/{order_id}")
        try:
            return client.post(f"/intents/{intent['intent_id']}/confirm", {}, key=f"pay/{order_id}")["status"]
        except client.ProviderError:
            return client.post(f"/intents/{intent['intent_id']}/confirm", {}, key=f"pay/{order_id}")["status"]
    except client.ProviderRefused as refused:
        return refused.code


def test_it_listens_where_it_is_told(tmp_path):
    command = [sys.executable, str(EXAMPLES / "provider.py"), "--port", "0", "--db", str(tmp_path / "p.db"), "--host"]
    process = subprocess.Popen([*command, "localhost"], stdout=subprocess.PIPE, text=True)
    try:
        said, _, port = process.stdout.readline().strip().rpartition(":")
        assert said == "provider listening on http://localhost"
        HTTPConnection("localhost", int(port), timeout=10).request("GET", "/health")
    finally:
        process.kill()
        process.communicate(timeout=10)
    done = subprocess.run([*command, "203.0.113.1"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("provider: cannot listen on 203.0.113.1:0: ")


def test_throughput(start):
    """Loose, since machines differ: a provider that waits somewhere is slower by far."""
    provider = start()
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: provider.intent(f"t-{n}"), range(400)))
    assert time.monotonic() - began < 8
