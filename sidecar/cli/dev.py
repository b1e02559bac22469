"""`dev broker`: an embedded real Apache Kafka, for first steps and for tests of services."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sidecar.cli.terminal.exit_codes import DONE
from sidecar.cli.terminal.options import Options, command, take_common
from sidecar.cli.terminal.output import talk, write
from sidecar.dev.kafka.releases import NEWEST, RELEASES
from sidecar.errors import SetupError

if TYPE_CHECKING:
    from sidecar.dev.kafka.embedded import EmbeddedKafka

LOOK_SECONDS = 0.2
"""Seconds between two checks that the nodes still run."""

app = typer.Typer(help="Tools for development.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


@command(app, "broker")
def broker(
    options: Options,
    nodes: Annotated[int, typer.Option("--nodes", help="1 or 3 nodes.")] = 1,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Of the first node; 0 takes a free one.")] = 0,
    kafka: Annotated[str, typer.Option("--kafka", metavar="RELEASE", help=f"{', '.join(RELEASES)}.")] = NEWEST,
) -> int:
    """Run a real Apache Kafka.

    It prints its bootstrap.servers as one line on stdout and runs until Ctrl-C or SIGTERM.
    Needs Java 17 or later; the broker is downloaded once, checked and cached. Its data is gone afterwards.

    \b
    Examples:
      reconsume dev broker --port 9092
      reconsume dev broker --nodes 3
      reconsume dev broker --kafka 3.9
    """
    if nodes not in (1, 3):
        raise typer.BadParameter("--nodes must be 1 or 3: two nodes are no safer than one")
    if kafka not in RELEASES:
        raise typer.BadParameter(f"--kafka {kafka}: known are {', '.join(RELEASES)}")
    from sidecar.dev.kafka.embedded import EmbeddedKafka
    from sidecar.java.download_bar import progress_bar

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress_bar() as progress:
        cluster = EmbeddedKafka.start(nodes, release=kafka, port=port, progress=progress)
    with cluster:
        try:
            announce(options, cluster.bootstrap)
            watch(cluster)
        except KeyboardInterrupt:  # the normal end
            talk("stopping")
    return DONE


def announce(options: Options, bootstrap: str) -> None:
    """Print the broker's address: alone on a line, or as a row if a format is given."""
    if options.format is None:
        write(bootstrap)
    else:
        options.output.rows(("bootstrap",), [{"bootstrap": bootstrap}])
    sys.stdout.flush()
    talk("Apache Kafka runs; Ctrl-C ends it")


def watch(kafka: EmbeddedKafka) -> NoReturn:
    """Wait for Ctrl-C or SIGTERM, which raise KeyboardInterrupt. Raises SetupError if a node ends by itself."""
    while all(node.running for node in kafka.nodes):
        time.sleep(LOOK_SECONDS)
    raise SetupError("a node of the embedded Kafka has ended by itself")
