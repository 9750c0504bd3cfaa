"""A live view of an app's runs as a Faust service: counts by status and the last state of a run, on a web page.

    streams dev up                                          # a real Kafka; prints its address
    streams worker examples/order.py:app --log kafka://…    # the engine
    python examples/faust_views.py --log kafka://…          # this view; start it twice, and each takes half

It needs Faust: pip install 'streams-engine[faust]'. A view only reads. It can be stopped, killed and built again from
the first event at any time: give it another `--group`, and it begins anew. See docs/faust.md for what it promises.
"""

from __future__ import annotations

import argparse

from streams.effects.faust import make_view, run_app


def main() -> None:
    parser = argparse.ArgumentParser(description="A live view of an app's runs.")
    parser.add_argument("--log", required=True, help="kafka://HOST:PORT")
    parser.add_argument("--app", default="orders", help="the name of the app (orders)")
    parser.add_argument("--group", help="the name of the view: workers with the same one share the partitions")
    parser.add_argument("--partitions", type=int, default=12, help="how many the app's topics have (12)")
    parser.add_argument("--port", type=int, default=0, help="of the web page, on 127.0.0.1; 0: a free one")
    options = parser.parse_args()
    view = make_view(options.app, options.log, group=options.group, partitions=options.partitions, port=options.port)
    print(f"runs of {options.app}: {view.url}", flush=True)
    run_app(view.service)


if __name__ == "__main__":
    main()
