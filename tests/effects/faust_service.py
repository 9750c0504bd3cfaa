"""Faust services as programs of their own, for tests that kill them: `python faust_service.py ROLE --FLAGS`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from streams.effects.faust import make_app, run_app


def note(out: str, line: str) -> None:
    with Path(out).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def collect(options: argparse.Namespace) -> None:
    """Write down what is read, a line each."""
    app = make_app(options.group, options.log, web_enabled=False, broker_commit_interval=0.2, **TIMES[options.times])

    @app.agent(app.log_topic(options.topic))
    async def read(stream):
        async for value in stream:
            note(options.out, value.decode())

    sys.exit(run_app(app))


TIMES = {
    "ours": {},
    "stock": {"broker_session_timeout": 60.0, "broker_heartbeat_interval": 3.0, "broker_request_timeout": 90.0},
}
ROLES = {"collect": collect}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=sorted(ROLES))
    parser.add_argument("--log", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic")
    parser.add_argument("--out")
    parser.add_argument("--times", choices=sorted(TIMES), default="ours")
    options = parser.parse_args()
    ROLES[options.role](options)


if __name__ == "__main__":
    main()
