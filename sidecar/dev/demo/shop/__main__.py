"""The shop as a process of its own.

python -m reconsume.sidecar.dev.demo.shop LEDGER [--front push|batch|pull|relay] [--down-after SECONDS]
    [--down-for SECONDS] [--api PORT] [--bootstrap HOST:PORT --group GROUP --topics MAIN READY]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

from reconsume.sidecar.dev.demo.ledger import LedgerWriter
from reconsume.sidecar.dev.demo.shop.batch import BatchFront
from reconsume.sidecar.dev.demo.shop.order_log import Front, OrderLog
from reconsume.sidecar.dev.demo.shop.pull import PullFront
from reconsume.sidecar.dev.demo.shop.push import PushFront
from reconsume.sidecar.dev.demo.shop.relay import RelayFront

Make = Callable[[OrderLog, argparse.Namespace, asyncio.TaskGroup], Front]
FRONTS: dict[str, Make] = {
    "push": lambda counter, options, tasks: PushFront(counter),
    "batch": lambda counter, options, tasks: BatchFront(counter),
    "pull": lambda counter, options, tasks: PullFront(counter, options.api, tasks),
    "relay": lambda counter, options, tasks: RelayFront(
        counter, options.api, tasks, options.bootstrap, options.group, options.topics
    ),
}


async def serve(options: argparse.Namespace) -> None:
    """Take orders until killed; be down once for `--down-for` seconds, `--down-after` seconds from the first order."""
    counter = OrderLog(LedgerWriter(options.ledger))
    async with asyncio.TaskGroup() as tasks:  # a failure of any task ends the shop
        front = FRONTS[options.front](counter, options, tasks)
        await front.open()
        await counter.visited.wait()
        if options.down_for:
            await asyncio.sleep(options.down_after)
            await front.close()
            await asyncio.sleep(options.down_for)
            await front.open()
        await asyncio.Event().wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m reconsume.sidecar.dev.demo.shop", description="The sample order service."
    )
    parser.add_argument("ledger", type=Path, help="the file to write what was seen to")
    parser.add_argument("--front", choices=FRONTS, default="push", help="how it gets its orders")
    parser.add_argument("--down-after", type=float, default=0, help="seconds from the first order")
    parser.add_argument("--down-for", type=float, default=0, help="seconds; 0: never down")
    parser.add_argument("--api", type=int, default=0, help="the sidecar's port, for pull and relay")
    parser.add_argument("--bootstrap", default="", help="Kafka, for relay")
    parser.add_argument("--group", default="", help="the consumer group, for relay")
    parser.add_argument("--topics", nargs=2, default=[], help="the main topic and the ready topic, for relay")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
