"""`view run`, `view sql`: the Spark job that keeps the group-wide view, and a query over the present state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.retries.rows import whole_view
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka, settings_of_one
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import read_plain
from reconsume.sidecar.java.kafka_properties import to_java
from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.kafka import LARGEST_READ
from reconsume.sidecar.view.source import Source
from reconsume.topics.durations import parse_duration

if TYPE_CHECKING:
    from reconsume.sidecar.java.spark_job import Cluster

UNUSED = ("topics=[none]", "deliver={mode: pull}", "retry={}")
"""Settings that a sidecar requires and the view does not use: placeholders that override the configuration."""
NO_GROUP = "group=none"
"""The placeholder for `group` if the groups are named on the command line."""
LARGEST_PROPERTIES = 1024 * 1024
"""Bytes of a file for --kafka-properties, which may hold certificates as PEM."""


def duration(text: str) -> str:
    """Return the duration as it was given. Raises BadParameter if it is invalid."""
    try:
        parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


Groups = Annotated[str | None, typer.Option("--groups", metavar="A,B", help="The views of these groups.")]
Pattern = Annotated[
    str | None,
    typer.Option("--pattern", metavar="REGEX", help="The views of all groups whose whole name matches, new ones too."),
]
Master = Annotated[str | None, typer.Option("--master", help="Spark's master; local[16] where it is not given.")]
Trigger = Annotated[
    str | None,
    typer.Option(
        "--trigger",
        parser=duration,
        metavar="DURATION",
        help="How often the view is written; 1s where it is not given.",
    ),
]
MetricsListen = Annotated[
    str | None, typer.Option("--metrics-listen", metavar="HOST:PORT", help="Serve Prometheus metrics and /livez here.")
]
MaxOffsets = Annotated[
    int | None, typer.Option("--max-offsets", min=1, help="Records in one batch; 50000 where it is not given.")
]
KafkaProperties = Annotated[
    Path | None,
    typer.Option("--kafka-properties", metavar="FILE", help="Properties of Kafka's Java client, in place of kafka:."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]

app = typer.Typer(
    cls=Group, help="The group-wide view, kept by a Spark job.", no_args_is_help=True, rich_markup_mode=None
)
take_common(app)


@command(app, "run")
def run(
    options: Options,
    groups: Groups = None,
    pattern: Pattern = None,
    trigger: Trigger = None,
    max_offsets: MaxOffsets = None,
    metrics_listen: MetricsListen = None,
    master: Master = None,
    conf: Conf = None,
    kafka_properties: KafkaProperties = None,
) -> int:
    """Keep the views up to date.

    Reads the events of the configured group, or of those named here, and writes their -RETRY-VIEW. It runs until
    SIGTERM or Ctrl-C, which end it within 20 s with 0. It ends with 1 when its query fails, and goes on from its
    positions in Kafka when it is started again: let Kubernetes or systemd do that. Needs Java 17 or later, and PySpark
    (`pip install '.[spark]'` in a clone of the repository); the Kafka connector is downloaded once, checked and cached.

    \b
    Examples:
      reconsume view run
      reconsume view run --pattern 'billing.*' --metrics-listen 127.0.0.1:9404
    """
    kind, named, cluster = views_of(options, groups, pattern, kafka_properties)
    options_of_job = {kind: named, "trigger": trigger, "max-offsets": max_offsets}
    options_of_job |= {"metrics-listen": metrics_listen, "master": master}
    from reconsume.sidecar.java.spark_job import run_job

    return run_job(words(options_of_job, conf or ()), cluster)


def settings_with(options: Options, *named: str) -> Settings:
    """Return the settings of a group without what the view does not use, and with what `named` sets.

    Of several `-c` the files have it all, and `--set` cannot say whose a setting is.
    """
    if options.has_several_configs:
        return settings_of_one(options)
    return load(options.config, (*options.sets, *UNUSED, *named))


def views_of(
    options: Options, groups: str | None, pattern: str | None, kafka_properties: Path | None
) -> tuple[str, str, Cluster]:
    """Return the option that selects the groups, its value, and how to reach Kafka. Raises BadParameter if two are
    given."""
    if groups is not None and pattern is not None:
        raise typer.BadParameter("--groups and --pattern: give one of them")
    named = [NO_GROUP] if groups or pattern else []
    settings = settings_with(options, *named)
    kind, which = ("groups", groups or settings.group) if pattern is None else ("pattern", pattern)
    return kind, which, reached(settings, kafka_properties)


@command(app, "sql")
def sql(
    options: Options,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL over the table `view`.")],
    kafka_properties: KafkaProperties = None,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Read at most so many events, the newest; not for Spark.")
    ] = None,
) -> int:
    """Ask the present state, in SQL.

    The table `view` has a row for each record that has failed, with the fields of the view topic; `waiting`
    and `dead_letters` have what `retries list` and `dlq list` show, with key, value and headers; `events` has each
    change of state. Times are ISO texts. The tables that the query names are read from the topics themselves; `view
    run` need not be running. It is SQLite's SQL, over the events. With view.source: spark it is Spark's SQL, which
    needs what `view run` needs and some ten seconds.

    A query is code: Spark's SQL calls Java and reads files with this user's rights. Run no query of somebody else.

    \b
    Examples:
      reconsume view sql 'SELECT reason, count(*) FROM view GROUP BY 1'
      reconsume view sql "SELECT value ->> 'customer', count(*) FROM dead_letters WHERE state = 'ready' GROUP BY 1"
    """
    settings = settings_with(options)
    if settings.view.source == "events":
        if kafka_properties is not None:
            raise typer.BadParameter("--kafka-properties are for Spark, and the view is made from the events here")
        from reconsume.sidecar.cli.view_sql import SqlTables, answers

        @cache
        def tables() -> SqlTables:  # their topics depend on the main topics, which the view itself does without
            return SqlTables(settings_for_kafka(options), ask)

        loaders = {
            "events": lambda: tables().events(),
            "waiting": lambda: tables().waiting(),
            "dead_letters": lambda: tables().dead_letters(),
        }
        with (
            whole_view(settings, Source.EVENTS, most) as look,
            look.questions() as ask,
            answers(look.copy.path, query, loaders) as (columns, found),
        ):
            options.output.rows(columns, found)
        return DONE
    cluster = reached(settings, kafka_properties)
    from reconsume.sidecar.java.spark_job import run_query

    with run_query(query, settings.group, cluster) as answer:
        talk("from the events and Spark's view, by Spark")
        options.output.rows(answer.columns, answer.rows)
    return DONE


def reached(settings: Settings, file: Path | None) -> Cluster:
    """Return how Spark's Kafka client reaches the cluster. Raises ConfigError with every property that cannot be
    translated."""
    from reconsume.sidecar.java.spark_job import Cluster

    bootstrap = settings.kafka["bootstrap.servers"]
    if file is not None:
        expect_readable(file)
        return Cluster(bootstrap, file)
    done = to_java(settings.kafka, lambda name: read_plain(Path(name), LARGEST_READ).decode("utf-8"))
    if done.problems:
        raise ConfigError(done.problems)
    return Cluster(bootstrap, done.properties)


def expect_readable(file: Path) -> None:
    """Raise ConfigError if the file cannot be read. Found here it is one sentence; Spark would report it only after
    its start."""
    try:
        read_plain(file, LARGEST_PROPERTIES)
    except OSError as error:
        raise ConfigError([f"--kafka-properties: {file}: cannot be read: {error.strerror}"]) from error


def words(options: Mapping[str, object], conf: Iterable[str]) -> list[str]:
    """Return the options for the job, without those that were not given."""
    said = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return [*said, *(f"--conf={setting}" for setting in conf)]
