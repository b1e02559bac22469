"""`simulate`: what a group with so many failures will need, from the capacity model. It makes no connection."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from reconsume.sidecar.capacity import constants as figures
from reconsume.sidecar.capacity.key_lines import key_lines
from reconsume.sidecar.capacity.limits import lateness, limits, outage
from reconsume.sidecar.capacity.model import Load, crash, events, flow, instance, storage, transactions, waiting
from reconsume.sidecar.cli.explain_timeline import parks_in, terms_of
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, talk
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings import load as load_settings
from reconsume.sidecar.settings.values import parse_size
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.levels import Ladder, build_ladder, level_delays

COLUMNS = ("part", "what", "value", "unit", "note")


Rate = Annotated[float, typer.Option("--rate", help="Records a second on the main topics, of the whole group.")]
Fails = Annotated[float, typer.Option("--fail-rate", help="The fraction of first deliveries that fail.")]
RetryFailRate = Annotated[float, typer.Option("--retry-fail-rate", help="The fraction of retries that fail again.")]
Attempt = Annotated[str, typer.Option("--attempt", metavar="DURATION", help="How long the service takes.")]
Instances = Annotated[int, typer.Option("--instances", min=1, help="Sidecars.")]
Partitions = Annotated[int, typer.Option("--partitions", min=1, help="Of the main topics.")]
RecordSize = Annotated[str, typer.Option("--record-size", metavar="SIZE", help="Key, value and headers.")]
Replication = Annotated[int, typer.Option("--replication", min=1, help="Replicas of each partition.")]
Brokers = Annotated[int, typer.Option("--brokers", min=1, help="Brokers of the cluster.")]
Outage = Annotated[str, typer.Option("--outage", metavar="DURATION", help="The service is away for so long.")]
Steps = Annotated[
    str | None, typer.Option("--ladder", help="rocketmq, pulsar, or delays: 10s,1m,1h. Else the configuration's.")
]
Retries = Annotated[int | None, typer.Option("--retries", min=0, help="Else the configuration's, else 16.")]


Keys = Annotated[
    int, typer.Option("--keys", min=1, help="With retry.ordered_ladder: of so many keys the records are, evenly.")
]
Topic = Annotated[str, typer.Option("--topic", help="The load is of this main topic; for --reason else the first one.")]
Reason = Annotated[
    str, typer.Option("--reason", metavar="CLASS", help="All failures are of this class: the rule for it applies.")
]


class LoadOptions(NamedTuple):
    """The options as typed, in their order."""

    rate: float
    fails: float
    again: float
    attempt: str
    instances: int
    partitions: int
    record_size: str
    replication: int
    brokers: int
    outage: str
    ladder: str | None
    retries: int | None
    topic: str
    reason: str
    keys: int


def simulate(
    options: Options,
    rate: Rate,
    fail_rate: Fails,
    again: RetryFailRate = 0.5,
    attempt: Attempt = "50ms",
    instances: Instances = 1,
    partitions: Partitions = 12,
    record_size: RecordSize = "1KiB",
    replication: Replication = 3,
    brokers: Brokers = 3,
    away: Outage = "0s",
    ladder: Steps = None,
    retries: Retries = None,
    topic: Topic = "",
    reason: Reason = "",
    keys: Keys = 10_000,
) -> None:
    """Show what a group will need.

    What waits in each level, topics and disk, requests, transactions, CPU and memory, second deliveries after a crash,
    lateness, and which limit breaks first. A model with constants measured on one machine (docs/capacity.md). With -c
    or --set, ladder, levels, concurrency and rates are the configuration's; with --topic also what that topic has of
    its own. For an ordered group with a ladder it says what is behind failing keys, and when the next record of such a
    key goes. Spark's part is shown with view.source: spark.

    \b
    Examples:
      reconsume simulate --rate 1000 --fail-rate 0.01 -o table
      reconsume simulate --rate 1e6 --fail-rate 0.001 --instances 100 --partitions 200 --outage 10m
    """
    traffic = (rate, fail_rate, again, attempt)
    cluster = (partitions, record_size, replication, brokers)
    load = load_of(options, LoadOptions(*traffic, instances, *cluster, away, ladder, retries, topic, reason, keys))
    options.output.rows(COLUMNS, list(rows_of(load)))
    talk(f"constants: {figures.MEASURED}")
    if options.output.format is Format.TABLE and sys.stdout.isatty():
        bars(waiting(load), color=not options.no_color)


def load_of(options: Options, load: LoadOptions) -> Load:
    """Build the model's input: each value as typed, else as configured, else the default. Raises BadParameter if one
    is invalid."""
    configured = load_settings(options.config, options.sets) if options.config or options.sets else None
    levels = "ladder" if configured is None else configured.levels
    own, most = terms_for(configured, load.topic, load.reason)
    steps = ladder_of(load.ladder, own)
    queued = configured is not None and configured.queued
    try:
        return Load(
            rate=load.rate,
            fails=load.fails,
            fails_again=load.again,
            attempt=seconds(load.attempt),
            instances=load.instances,
            concurrency=256 if configured is None else requests_of(configured, load.topic),
            partitions=load.partitions,
            record_bytes=parse_size(load.record_size),
            replication=load.replication,
            brokers=load.brokers,
            outage=seconds(load.outage),
            retries=most if load.retries is None else load.retries,
            ladder=steps,
            delays=() if queued else level_delays(levels, steps),
            spark=configured is not None and configured.view.source == "spark",
            keys=load.keys if queued else None,
            parks=configured is not None and parks_in(configured),
            max_waiting=20_000 if configured is None else configured.retry.ordered_max_waiting,
            most=math.inf if configured is None else rate_of(configured, load.topic, load.instances),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def requests_of(settings: Settings, topic: str) -> int:
    """Return how many requests an instance may have in flight; with a topic, with its records."""
    own = next((one.concurrency for one in settings.topics if one.name == topic), None)
    return settings.deliver.concurrency if own is None else min(own, settings.deliver.concurrency)


def rate_of(settings: Settings, topic: str, instances: int) -> float:
    """Return how many deliveries a second an instance may make; with a topic, of its records."""
    deliver = settings.deliver
    own = next((one.rate for one in settings.topics if one.name == topic), None)
    rates = [rate.per_second for rate in (own, deliver.rate) if rate is not None]
    if deliver.group_rate is not None:
        rates.append(deliver.group_rate.per_second / instances)
    return min(rates, default=math.inf)


def terms_for(settings: Settings | None, topic: str, reason: str) -> tuple[Ladder, int]:
    """Return the ladder and the most retries of the failures that are modelled; without settings, the defaults."""
    if settings is None:
        return Ladder(build_ladder("rocketmq").delays), 16
    if topic and topic not in settings.topic_names:
        raise typer.BadParameter(f"{topic} is not a main topic of the group: {', '.join(settings.topic_names)}")
    terms = terms_of(settings, topic or settings.topic_names[0], reason)
    return terms.ladder, 0 if terms.dead_letter else terms.max_reconsume_times


def ladder_of(text: str | None, otherwise: Ladder) -> Ladder:
    """Parse the ladder; None gives `otherwise`. Raises BadParameter if it is invalid."""
    if text is None:
        return otherwise
    try:
        named = text in ("rocketmq", "pulsar")
        return build_ladder(
            text if named else tuple(parse_duration(text_of_delay.strip()) for text_of_delay in text.split(","))
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seconds(text: str) -> float:
    """Parse a duration, in seconds. Raises ValueError if it is invalid."""
    return parse_duration(text) / 1_000


def rows_of(load: Load) -> Iterator[Row]:
    """Yield all results of the model, part by part."""
    yield from flow_rows(load)
    for delay, count in waiting(load).items():
        where = "its level topic" if load.keys is None else "the queue topic"
        yield row("waiting", render_duration(delay), count, "records", f"in {where}, in the long run")
    if load.keys is not None:
        yield from key_rows(load, load.keys)
    yield from instance_rows(load)
    for kind, stored in storage(load).items():
        counts = {"topic": stored.topics, "partition": stored.partitions, "replica": stored.replicas}
        text = ", ".join(plural(count, noun) for noun, count in counts.items())
        yield row("storage", str(kind), stored.size / 1e9, "GB", text)
    yield from trouble_rows(load)
    for limit in limits(load):
        mend = f"reached: {limit.mend}" if limit.used > figures.BUSY else ""
        yield row("limit", limit.what, 100 * limit.used, "%", mend)


def flow_rows(load: Load) -> Iterator[Row]:
    """Yield the rates and counts of the whole group."""
    rates = flow(load)
    yield row("group", "retries", rates.retried, "records/s", "deliveries beside the first ones")
    after = f"after {load.retries} retries"
    if load.parks:
        yield row("group", "parked", rates.dead, "records/s", f"{after}; its key stands until a person settles it")
    else:
        yield row("group", "dead letters", rates.dead, "records/s", after)
    all_of_it = "in all levels together" if load.keys is None else "each the first of its key"
    yield row("group", "waiting", sum(waiting(load).values()), "records", all_of_it)
    yield row("group", "requests", load.rate + rates.retried, "1/s", "to the service; fewer when batched")
    yield row("group", "transactions", transactions(load), "1/s", "of all lanes of all instances")
    yield row("group", "events", events(load), "1/s", "what the view is made from")


def key_rows(load: Load, keys: int) -> Iterator[Row]:
    """Yield what becomes of the keys of failing records."""
    lines = key_lines(load, keys)
    grows = "" if lines.behind is not None else "it grows: a key gets more than it gets done"
    yield row("keys", "blocked", lines.blocked, "keys", f"of {keys}, at a time: their first record waits")
    yield row("keys", "behind", lines.behind, "records", grows or "that came later, of blocked keys")
    yield row("keys", "next record", lines.next_s, "s", "after one that fails, until it goes: on average")


def instance_rows(load: Load) -> Iterator[Row]:
    """Yield the load of each sidecar."""
    one = instance(load)
    yield row("instance", "requests", one.pushes, "1/s", "")
    yield row("instance", "in flight", one.in_flight, "requests", f"deliver.concurrency is {load.concurrency}")
    yield row("instance", "CPU", one.cores, "cores", "of the sidecar alone")
    yield row("instance", "memory", one.memory / 1e6, "MB", "")


def trouble_rows(load: Load) -> Iterator[Row]:
    """Yield the cost of a crash and of an outage, and the lateness of retries."""
    second, late = crash(load), lateness(load)
    yield row("crash", "second deliveries", second.usual, "records", f"of one sidecar; at most {number(second.most)}")
    if late is None:
        yield row("lateness", "p99", None, "ms", "it grows: a limit below is reached")
    else:
        yield row("lateness", "p50", late["p50"], "ms", "after the due time")
        yield row("lateness", "p99", late["p99"], "ms", "")
    if load.outage:
        length = outage(load)
        yield row("outage", "backlog", length.backlog, "records", "on the main topics; no retry is spent")
        note = "" if length.seconds is not None else "never: it is too slow"
        yield row("outage", "caught up after", length.seconds, "s", note)


def row(group: str, what: str, value: float | None, unit: str, note: str) -> Row:
    """Return one figure as a row, rounded to three significant digits."""
    return {"part": group, "what": what, "value": None if value is None else number(value), "unit": unit, "note": note}


def number(value: float) -> float | int:
    """Round a number to three significant digits; it becomes an integer from 100 on."""
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded >= 100 else rounded


def bars(waits: dict[int, float], *, color: bool) -> None:
    """Draw the number of waiting records of each level as bars."""
    from rich.bar import Bar  # rich is slow to import: only when something is drawn
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    most = max(waits.values(), default=0.0) or 1.0
    for delay, count in waits.items():
        table.add_row(render_duration(delay), Bar(most, 0, count, width=50), f"{number(count):,}")
    Console(stderr=True, no_color=True if not color else None).print("waiting per level", table)
