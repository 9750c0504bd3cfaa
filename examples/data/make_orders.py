"""Makes orders.jsonl, the 200 orders of the demo, always the same: `python examples/data/make_orders.py`.

What becomes of an order is in its row, and each row has at most one trouble: a total above 1000.00 waits for approval;
a declined card, a sku that is out of stock or a quantity of 0 fails; a `behaviour` makes the provider fail on the way,
which the order survives. `behaviour` is passed on to the provider as it is (see provider.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("orders.jsonl")
LIMIT = Decimal("1000.00")

# (how many, kind, above the limit)
KINDS = (
    (108, "plain", False),
    (41, "plain", True),
    (10, "declined", False),
    (3, "declined", True),
    (10, "fail_before", False),
    (2, "fail_before", True),
    (10, "fail_after", False),
    (2, "fail_after", True),
    (4, "drop_after", False),
    (2, "slow", False),
    (2, "exact", False),  # the limit itself is not above it
    (1, "exact", True),  # and a cent more is
    (2, "out_of_stock", False),
    (3, "no_quantity", False),
)
NAMES = (
    "Customer {}",
    "客户-{}",
    "Çaylı No {}",  # noqa: RUF001
    "عميل {}",
    "Kundin Größe {}",
    "Société Générée n° {}",
    "顧客 第{}号",
    "고객 {}",
    "Покупатель {}",
    "लेखा {}",
    "Cliente «{}» 🚚",
    "👩‍🚀 Shop {} 🪐",
    'O\'Quote "{}" \\ Sons',
)
CURRENCIES = ("EUR", "USD", "CNY", "TRY", "SAR", "GBP")
SKUS = ("tea", "lamp", "kettle", "desk", "chair", "冊子", "çini", "cable-2m", "book/paper", "pen set")
SMALL_PRICES = ("0.99", "12.5", "3", "0.333", "12.50", "19.90", "7.05", "0.01", "45.00")
LARGE_PRICES = ("1200.00", "999.99", "1000", "2500.5", "1049.00")
SMALL_QUANTITIES = (1, 1, 2, 3, 5, 8)
LARGE_QUANTITIES = (2, 3, 4, 12)


def picker() -> Callable[[Any], Any]:
    """Only `random()` itself is promised to be the same in every Python, so all choices are made with it."""
    source = random.Random(20)
    return lambda options: options[int(source.random() * len(options))]


def items(pick: Callable[[Any], Any], *, above: bool) -> list[dict[str, Any]]:
    skus = list(SKUS)
    rows = []
    for _ in range(pick((1, 1, 2, 3))):
        sku = pick(skus)
        skus.remove(sku)  # a sku once an order: its reservation is keyed by order and sku
        rows.append({"sku": sku, "quantity": pick(SMALL_QUANTITIES), "unit_price": pick(SMALL_PRICES)})
    if above:
        rows[0] |= {"quantity": pick(LARGE_QUANTITIES), "unit_price": pick(LARGE_PRICES)}
    return rows


def total(order: dict[str, Any]) -> Decimal:
    return sum((item["quantity"] * Decimal(item["unit_price"]) for item in order["items"]), Decimal(0))


def order_of(number: int, kind: str, pick: Callable[[Any], Any], *, above: bool) -> dict[str, Any]:
    order: dict[str, Any] = {
        "order_id": f"o-{number:04}",
        "customer": pick(NAMES).format(number),
        "items": items(pick, above=above),
        "currency": pick(CURRENCIES),
        "card": "declined" if kind == "declined" else "ok",
        "behaviour": None,
    }
    if kind in {"fail_before", "fail_after", "drop_after", "slow"}:
        order["behaviour"] = {"operation": "confirm", "mode": kind, "times": 1}
    if kind == "slow":
        order["behaviour"]["delay_ms"] = 300
    if kind == "exact":
        order["items"] = [{"sku": "desk", "quantity": 1, "unit_price": "1000.01" if above else "1000.00"}]
    if kind == "out_of_stock":
        order["items"][-1]["sku"] = "OUT-OF-STOCK"
    if kind == "no_quantity":
        order["items"][0]["quantity"] = 0
    return order


def orders() -> list[dict[str, Any]]:
    pick = picker()
    kinds = [(kind, above) for count, kind, above in KINDS for _ in range(count)]
    made = []
    for number in range(1, len(kinds) + 1):
        kind, above = pick(kinds)
        kinds.remove((kind, above))
        order = order_of(number, kind, pick, above=above)
        while (total(order) > LIMIT) != above:  # drawn again until its total fits its kind
            order = order_of(number, kind, pick, above=above)
        made.append(order)
    return made


def content() -> str:
    return "".join(json.dumps(order, ensure_ascii=False) + "\n" for order in orders())


if __name__ == "__main__":
    FILE.write_text(content(), encoding="utf-8", newline="\n")
    print(f"wrote {len(orders())} orders to {FILE}")
