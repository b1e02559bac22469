"""Parse the arguments of `python -m reconsume.spark`, also under `spark-submit`, into one frozen value.

Pure: no function here reads a file, and none imports Spark, so that a wrong option is reported at once. `reconsume view
run` runs the same program.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from reconsume.spark.names import EVENTS_SUFFIX
from reconsume.topics.durations import parse_duration
from reconsume.topics.names import check_name

TRIGGER = "1s"
MAX_OFFSETS = 50_000


@dataclass(frozen=True, slots=True)
class Run:
    """The options of `run`; `trigger` is ms."""

    groups: tuple[str, ...]
    pattern: str | None
    kafka_properties: str | None
    bootstrap: str | None
    master: str | None
    trigger: int
    max_offsets: int
    metrics_listen: tuple[str, int] | None
    jars: tuple[str, ...]
    conf: tuple[tuple[str, str], ...]

    def reads(self) -> str:
        """Return a description of the groups whose events are read."""
        if self.pattern is not None:
            return f"all groups that match {self.pattern}"
        return f"the groups {', '.join(self.groups)}"


@dataclass(frozen=True, slots=True)
class Sql:
    """The options of `sql`."""

    query: str
    group: str
    kafka_properties: str | None
    bootstrap: str | None
    master: str | None
    jars: tuple[str, ...]
    conf: tuple[tuple[str, str], ...]


def parse(arguments: Sequence[str]) -> Run | Sql:
    """Return the options of `arguments`; wrong ones end the process with code 2 and one sentence, as argparse does."""
    values = vars(build_parser().parse_args(arguments))
    values["conf"] = tuple(values["conf"])
    if values.pop("command") == "sql":
        return Sql(**values)
    return Run(**{**values, "groups": values["groups"] or ()})


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one sentence, without the usage text before it."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end the process with code 2."""
        self.exit(2, f"reconsume: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of both commands."""
    parser = Parser(prog="python -m reconsume.spark", description="The group-wide view, as a Spark job.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_run(commands.add_parser("run", help="keep the views up to date"))
    sql = commands.add_parser("sql", help="one query over the present state of a group")
    sql.add_argument("--query", required=True)
    sql.add_argument("--group", required=True, type=group)
    add_common(sql)
    return parser


def add_run(run: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    which = run.add_mutually_exclusive_group(required=True)
    which.add_argument("--groups", type=groups, metavar="A,B", help="the groups")
    which.add_argument("--pattern", type=regex, metavar="REGEX", help="every group whose whole name matches")
    run.add_argument("--trigger", type=duration, default=TRIGGER, help="how often the view is brought up to date")
    run.add_argument("--max-offsets", type=count, default=MAX_OFFSETS, help="records in one batch at most")
    run.add_argument("--metrics-listen", type=address, metavar="HOST:PORT", help="Prometheus metrics")
    add_common(run)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of both commands: Kafka's address, and how Spark is started."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka, unless the properties say it")
    parser.add_argument("--kafka-properties", metavar="FILE", help="properties of Kafka's Java client, such as ssl.*")
    parser.add_argument("--master", help="local[16], unless spark-submit says it")
    parser.add_argument("--jars", type=words, default=(), metavar="A,B", help="Spark's Kafka connector")
    parser.add_argument(
        "--conf", type=pair, action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; repeatable"
    )


def wrong(sentence: object) -> argparse.ArgumentTypeError:
    """Return an error whose text argparse prints unchanged."""
    return argparse.ArgumentTypeError(str(sentence))


def words(text: str) -> tuple[str, ...]:
    """Return the parts of a text between commas, without empty ones."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def groups(text: str) -> tuple[str, ...]:
    """Parse group names separated by commas. Raises ArgumentTypeError if one is not allowed, or if there is none."""
    names = tuple(group(name) for name in words(text))
    if not names:
        raise wrong("name at least one group")
    return names


def group(text: str) -> str:
    """Check a group's name: Kafka must allow the name of its events topic. Raises ArgumentTypeError if it does not."""
    try:
        check_name(f"{text}{EVENTS_SUFFIX}")
    except ValueError as error:
        raise wrong(error) from error
    return text


def regex(text: str) -> str:
    """Check a regular expression. Raises ArgumentTypeError if it is empty or does not compile."""
    try:
        # Compiled alone: an unbalanced `)` would end the group in which the pattern stands before the suffix.
        re.compile(text)
    except re.error as error:
        raise wrong(f"{text!r} is not a regular expression: {error}") from error
    if not text:
        raise wrong("an empty pattern matches no group; every group is .*")
    return text


def duration(text: str) -> int:
    """Parse a duration into ms. Raises ArgumentTypeError if it is not a duration, or is 0."""
    try:
        ms = parse_duration(text)
    except ValueError as error:
        raise wrong(error) from error
    if ms == 0:
        raise wrong("must be more than 0s")
    return ms


def count(text: str) -> int:
    """Parse a number of at least 1. Raises ArgumentTypeError if it is not one."""
    if not text.isdecimal() or int(text) == 0:
        raise wrong(f"{text!r} is not a number from 1")
    return int(text)


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT to listen on; port 0 means any free port. Raises ArgumentTypeError if it is not HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise wrong(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def pair(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE. Raises ArgumentTypeError if it is not of that form."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise wrong(f"{text!r} is not KEY=VALUE")
    return name.strip(), value.strip()
