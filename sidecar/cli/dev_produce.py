"""`dev produce`: write one record to a topic, to see what becomes of it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from reconsume.sidecar.cli.terminal.confirm import NeverAsks
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.hints import hint

COLUMNS = ("id", "topic", "partition", "offset")
LARGEST = 32 * 1024 * 1024
"""Bytes of a value from stdin. Kafka takes 1 MB by default."""


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
    data = from_stdin() if value == "-" else encoded(value, "VALUE")
    from reconsume.sidecar.dev import produce as dev  # the Kafka client is slow to import, and --help needs none

    produced = dev.produce(kafka, topic, None if key is None else encoded(key, "--key"), data, pairs)
    options.output.rows(COLUMNS, [{"id": produced.id, **produced._asdict()}])
    talk(f"written; if it fails: {hint(f'retries show {produced.id}')}")


def header_of(text: str) -> tuple[str, bytes]:
    """Parse NAME=VALUE. Raises BadParameter if it has no name or no sign."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise typer.BadParameter(f"--header must be NAME=VALUE, and is {text[:40]!r}")
    return name, encoded(value, "--header")


def encoded(text: str, what: str) -> bytes:
    """Return the bytes that were typed, also where they are no UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as fault:
        raise typer.BadParameter(f"{what} holds half a character") from fault


def from_stdin() -> bytes:
    """Read a value. Raises BadParameter if it is too large."""
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise typer.BadParameter(f"a value has at most {LARGEST} bytes")
    return data
