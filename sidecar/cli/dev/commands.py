"""`demo`, `dev broker`, `dev up`, `dev produce`: the tools for development.

They run a real Apache Kafka on this machine: for a demonstration that checks itself, alone, or with all that a first
try needs. The sidecar's image has none of this file (`left_out`). What runs until Ctrl-C or SIGTERM ends with 0.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from reconsume.sidecar.cli.dev.deliver import deliver
from reconsume.sidecar.cli.dev.expect import expect
from reconsume.sidecar.cli.dev.typed_records import encoded, header_of, value_on_stdin
from reconsume.sidecar.cli.terminal.confirm import NeverAsks
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import talk, write
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.kafka.releases import RELEASES, USUAL
from reconsume.sidecar.dev.main_topics import create_main_topics, parse_wanted
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.settings import load_with_origins

if TYPE_CHECKING:
    from reconsume.sidecar.dev.demo.playground import Links, OwnService
    from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

FASTEST = 100_000
"""What waits may be divided by. A delay of 2 h then takes 72 ms, which is less than Kafka takes for a transaction."""
LOOK_SECONDS = 0.2
"""Seconds between two checks that the nodes still run."""

app = typer.Typer(cls=Group, help="Tools for development.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


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


@command(app, "broker")
def broker(
    options: Options,
    nodes: Annotated[int, typer.Option("--nodes", help="1 or 3 nodes.")] = 1,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Of the first node; 0 takes a free one.")] = 0,
    kafka: Annotated[str, typer.Option("--kafka", metavar="RELEASE", help=f"{', '.join(RELEASES)}.")] = USUAL,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME[:PARTITIONS]", help="Create a topic; may be repeated. One partition."),
    ] = None,
) -> None:
    """Run a real Apache Kafka.

    It prints its bootstrap.servers as one line on stdout, once the topics are there, and runs until Ctrl-C or SIGTERM.
    Needs Java 17 or later; the broker is downloaded once, checked and cached. Its data is gone afterwards.

    \b
    Examples:
      reconsume dev broker --port 9092 --topic orders:3
      reconsume dev broker --nodes 3
      reconsume dev broker --kafka 3.9
    """
    if nodes not in (1, 3):
        raise typer.BadParameter("--nodes must be 1 or 3: two nodes are no safer than one")
    if kafka not in RELEASES:
        raise typer.BadParameter(f"--kafka {kafka}: known are {', '.join(RELEASES)}")
    try:
        wanted = [parse_wanted(text) for text in topics or ()]
    except ValueError as fault:
        raise typer.BadParameter(f"--topic {fault}") from fault
    from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
    from reconsume.sidecar.java.download_bar import progress_bar

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress_bar() as progress:
        cluster = EmbeddedKafka.start(nodes, release=kafka, port=port, progress=progress)
    with cluster, until_interrupted():
        create_main_topics(cluster.bootstrap, wanted, nodes)
        announce(options, cluster.bootstrap)
        watch_cluster(cluster)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block until Ctrl-C or SIGTERM, which are its normal end; after the first one, both are ignored."""
    try:
        yield
    except KeyboardInterrupt:
        # The parts end one after the other. A second Ctrl-C would leave some of them to the guard's SIGKILL.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        talk("stopping")


def announce(options: Options, bootstrap: str) -> None:
    """Print the broker's address: alone on a line, or as a row if a format is given."""
    if options.format is None:
        write(bootstrap)
    else:
        options.output.rows(("bootstrap",), [{"bootstrap": bootstrap}])
    sys.stdout.flush()
    talk("Apache Kafka runs; Ctrl-C ends it")


def watch_cluster(kafka: EmbeddedKafka) -> NoReturn:
    """Wait for Ctrl-C or SIGTERM, which raise KeyboardInterrupt. Raises SetupError if a node ends by itself."""
    while all(node.running for node in kafka.nodes):
        time.sleep(LOOK_SECONDS)
    raise SetupError("a node of the embedded Kafka has ended by itself")


@command(app, "produce")
def produce(
    options: Options,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, which must exist.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value; - reads it from stdin.")],
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="The key; none by default.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="HOST:PORT", help="Where Kafka is, instead of a configuration's."),
    ] = None,
    _yes: NeverAsks = False,
) -> None:
    """Write one record to a topic.

    For first steps: with the Kafka of the configuration, or with --brokers without one. It prints the id by which the
    record is found if it fails: `reconsume retries show ID`, `reconsume dlq show ID`.

    \b
    Examples:
      reconsume dev produce orders '{"sku": "A-17"}' --brokers localhost:9092
      reconsume dev produce orders --key customer-7 --header trace=1 - < order.json
    """
    pairs = [header_of(text) for text in headers or ()]
    kafka = {"bootstrap.servers": brokers} if brokers is not None else settings_for_kafka(options).kafka
    data = value_on_stdin() if value == "-" else encoded(value, "VALUE")
    from reconsume.sidecar.dev.produce import (
        produce as produce_record,  # the Kafka client is slow to import, and --help needs none
    )

    produced = produce_record(kafka, topic, None if key is None else encoded(key, "--key"), data, pairs)
    row = {"id": produced.id, **produced._asdict()}
    options.output.rows(tuple(row), [row])
    talk(f"written; what becomes of it: {hint(f'retries show {produced.id}')}")


@command(app, "up")
def up(
    options: Options,
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many records the sample service gets.")] = 40,
    view: Annotated[bool, typer.Option("--view", help="Run the Spark job of the group-wide view too.")] = False,
    speed: Annotated[
        int, typer.Option("--speed", min=1, max=FASTEST, help="Divide the waits of retries by this number, for tests.")
    ] = 1,
) -> None:
    """Run everything, to click and to try.

    Starts Kafka, a sample service that sometimes fails, a sidecar and its dashboard; produces some records, prints the
    links, and runs until Ctrl-C or SIGTERM, which end it all. With -c the sidecar is that of your own service, which
    you start yourself; its section `kafka` is replaced, its topics are created, and no records are produced. It takes
    the usual ports, or free ones where those are in use. Needs Java 17 or later; --view needs PySpark too.
    All data is gone afterwards, but for the sidecar's log of a service of your own: it is beside the configuration, and
    its row `log` names it.

    With --speed 1000 a ladder of 4 h 46 min takes 17 s. The sidecar divides the delays of ladder and levels, the delays
    that your service asks for, nacks, retry.max_age and retry.postpone_limit. Timeouts, leases, intervals and what a
    429 asks for keep their length, and topics keep their names.

    \b
    Examples:
      reconsume dev up
      reconsume dev up --view
      reconsume dev up -c reconsume.yaml --speed 1000 -o jsonl
      reconsume dev up -c reconsume.yaml --set retry.max_reconsume_times=2
    """
    own = own_service(options)
    from reconsume.sidecar.dev.demo.playground import open_playground  # Kafka and its tools are slow to import

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with open_playground(orders, own, view=view, speed=speed, say=talk) as playground, until_interrupted():
        tell(options, playground.links)
        playground.run()


command(app, "expect")(expect)
command(app, "deliver")(deliver)


def own_service(options: Options) -> OwnService | None:
    """Return the user's own service. None: the sample service is to run. Raises ConfigError."""
    if options.config is not None:
        from reconsume.sidecar.dev.demo.playground import OwnService

        return OwnService(load_with_origins(options.config, options.sets).layers.tree, options.config)
    if options.sets:
        raise typer.BadParameter("--set changes the configuration of a service of your own: give it by -c")
    return None


def tell(options: Options, links: Links) -> None:
    """Print the links as rows on stdout, and hints on stderr."""
    rows = [{"what": what, "where": where} for what, where in links.rows()]
    options.output.rows(("what", "where"), rows)
    sys.stdout.flush()
    talk(f"produce a record: {shlex.join(links.producing('flaky'))}")
    if not links.is_own:
        talk(f"the service's answer depends on order-case: {', '.join(links.cases)}")
    for line in links.moved():
        talk(line)
    talk(f"commands for this group: {hint('dlq list', links.file)}")
    if options.sets:
        talk(f"what --set gave is in this file, and not in {options.config}: so give each command this one")
    talk("the link to the dashboard signs you in once; afterwards, and for calls of operators, use this token:")
    talk(links.token)
    talk("Ctrl-C ends it all")
