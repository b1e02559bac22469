"""`demo`: the whole system at work on an embedded Kafka."""

from __future__ import annotations

from typing import Annotated

import typer

from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.dev.demo.modes import Mode


def demo(
    options: Options,
    mode: Annotated[Mode, typer.Option("--mode", help="How the service gets its records.")] = Mode.PUSH,
    ladder: Annotated[
        str | None,
        typer.Option("--ladder", help="What the retries wait: rocketmq, pulsar, or delays joined by commas."),
    ] = None,
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many records are produced.")] = 400,
    view: Annotated[bool, typer.Option("--view", help="Run the Spark job of the group-wide view beside it.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all data in a folder, and name it.")] = False,
) -> int:
    """See it at work on an embedded Kafka.

    Starts Kafka, a service that sometimes fails, and the sidecar; shows the records on their way, and checks at the end
    that nothing was lost. Ends with 1 when something was. Needs Java 17 or later, and no configuration; --view needs
    PySpark too.

    \b
    Examples:
      reconsume demo
      reconsume demo --mode ordered
      reconsume demo --ladder 1s,2s,5s --orders 100
    """
    from reconsume.sidecar.dev.demo.plan import NO_LADDER, make_plan
    from reconsume.sidecar.dev.demo.run import main  # Kafka and its tools are slow to import

    if mode is Mode.ORDERED and ladder is not None:
        raise typer.BadParameter(f"--ladder with --mode ordered: {NO_LADDER}")
    return main(make_plan(mode, ladder, orders), color=not options.no_color, keep=keep, view=view)
