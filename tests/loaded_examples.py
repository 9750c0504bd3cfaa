"""The examples as modules, loaded once: loaded twice, their classes would be two of each name."""

from __future__ import annotations

from pathlib import Path

from streams.cli.loader import load_file

__all__ = ["order", "order_request", "provider", "report", "report_postgres"]

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
order = load_file(_EXAMPLES / "order.py")
order_request = load_file(_EXAMPLES / "order_request.py")
provider = load_file(_EXAMPLES / "provider.py")
report = load_file(_EXAMPLES / "report.py")
report_postgres = load_file(_EXAMPLES / "report_postgres.py")
