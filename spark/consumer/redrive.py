"""`redrive_rows`: send dead letters back from a frame, each once, with other values if need be.

The ids and values reach the driver one partition at a time, and are kept there. Of each id the newest open letter
counts. It is found by a first reading of the DLQ, and redriven as `dlq redrive` does (`sidecar/dlq`): with its
transactional id, so that the later of two redrives wins, and with its history, so that a redrive whose driver was
killed goes on when it is run again, and each letter is redriven once.
"""

from __future__ import annotations

import getpass
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType

from reconsume.sidecar.dlq.dead_letters import CLIENT, DeadLetters, LetterScan
from reconsume.sidecar.dlq.letters import Eligibility, Filter, RedriveRequest
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.dlq.redriver import REFUSED, Edits, PlanCounts, Redriver, at_positions
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.group_policy.operations import ActionStore
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_check import expect_clients
from reconsume.sidecar.operation import no_report
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.load import Layers
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.spark.consumer.client import native_client
from reconsume.spark.consumer.rules import Rules
from reconsume.topics.events import BY_REDRIVE

MOST_BYTES = 256 * 1024 * 1024
"""Bytes of ids and values in one call: they are all kept."""


class Redrives(NamedTuple):
    """What became of the ids of a frame; each field is an int. Each id is in one of the counts, except for `copies`.

    - `redriven`: its newest open dead letter was redriven, or would be in a dry run.
    - `copies`: other dead letters of these ids that no redrive takes, because they are copies of one that counts.
    - `not_open`: it has dead letters, all of which were redriven or dismissed, or cannot be redriven.
    - `unknown`: it has no dead letter.
    - `refused`: Kafka refuses its copy; it stays in the DLQ.
    """

    redriven: int
    copies: int
    not_open: int
    unknown: int
    refused: int


class RedriveError(RuntimeError):
    """A redrive did not end. What was committed stays; run it again, nothing is redriven twice."""


def redrive_rows(
    frame: DataFrame,
    rules: Rules,
    kafka: Mapping[str, str] | None = None,
    *,
    client: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Redrives:
    """Redrive the newest open dead letter of each id in a frame, once, and return the counts.

    - `frame` has the columns `id` STRING and `value` BINARY (or STRING, in UTF-8). A null value keeps the dead letter's
      own. A dead letter with another value gets the header RETRY_EDITED, which says who changed it, and when.
    - `rules` are the group's rules, from `rules_from` or `build_rules`.
    - `kafka` holds settings of Kafka's Java client, or `client` those of librdkafka, as text by name. Without both,
      those of the file that `rules_from` has read apply.
    - `dry_run`: nothing is written.

    It takes the place of any other redrive of the group that runs, and is recorded as an action, as `dlq redrive` is.
    The driver's user needs the same rights. A call takes at most 256 MiB of ids and values.

    Raises ValueError if a column is missing or has another type, an id is null, or no brokers are named. Raises
    RedriveError if an id has two values, Kafka does not answer, a topic is missing, or another redrive has begun.
    """
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    if not isinstance(kinds.get("id"), StringType) or not isinstance(kinds.get("value"), BinaryType | StringType):
        raise ValueError("the frame needs the columns id STRING and value BINARY")
    if kafka is None and client is None and not rules.file:
        raise ValueError("write the brokers as kafka={'bootstrap.servers': …}, or make the rules by rules_from")
    try:
        if kafka is None and client is None:
            settings = load(Path(rules.file))
        else:
            settings = _settings_of(rules, native_client(kafka, client))
        expect_clients(settings.kafka)
        return redrive_values(settings, _values_of(frame), _who(), dry_run=dry_run)
    except ReconsumeError as error:
        raise RedriveError(str(error)) from error


def redrive_values(
    settings: Settings, values: Mapping[str, bytes | None], who: str, *, dry_run: bool = False
) -> Redrives:
    """Redrive the newest open letter of each id, with its value; None keeps the letter's own. Raises ReconsumeError."""
    letters = DeadLetters(Cluster(settings.kafka, CLIENT), build_policy(settings, f"{BY_REDRIVE}{who}"))
    if dry_run:
        return _redrive(letters, values, who, dry_run=True)
    actions = ActionStore(letters.cluster, settings.names, lambda text: None)
    with actions.noted("redrive", who, f"{plural(len(values), 'id')} of a frame") as tally:
        counts = _redrive(letters, values, who, dry_run=False)
        tally.records = counts.redriven
    return counts


def _redrive(letters: DeadLetters, values: Mapping[str, bytes | None], who: str, *, dry_run: bool) -> Redrives:
    newest, known, copies = dict[str, tuple[int, int, str]](), set[str](), 0
    request = RedriveRequest(Filter(), MOST_REDRIVES_EVER, forgotten=True, topics=letters.policy.topics)
    with LetterScan(letters, request, no_report) as scan:
        for letter, state in scan:
            if letter.id not in values:
                continue
            known.add(letter.id)
            copies += state is Eligibility.COPY
            if state is Eligibility.READY:
                age = (letter.record.timestamp, letter.record.offset, letter.position)
                newest[letter.id] = max(age, newest.get(letter.id, age))
    by_position = {position: values[ident] for ident, (_, _, position) in newest.items()}
    counts = PlanCounts()
    if by_position and not dry_run:
        edits = Edits({position: value for position, value in by_position.items() if value is not None}, who)
        with Redriver(letters, at_positions(by_position), threading.Event(), edits=edits, counts=counts) as redriver:
            redriver.run(None, None, no_report)
    redriven = len(by_position) if dry_run else counts.redriven
    refused = counts.of(REFUSED)
    return Redrives(redriven, copies, len(known) - redriven - refused, len(values) - len(known), refused)


def _settings_of(rules: Rules, client: Mapping[str, str]) -> Settings:
    """Return settings that name the group's topics and brokers. Raises ConfigError."""
    tree = {"group": rules.names.group, "topics": list(rules.topics), "topic_prefix": rules.names.template}
    return Layers({**tree, "kafka": dict(client), "deliver": {"mode": "spark"}}).checked()


def _values_of(frame: DataFrame) -> dict[str, bytes | None]:
    """Return the values of a frame by id. Raises ValueError for a null id, and RedriveError if there is too much."""
    values, weight = dict[str, bytes | None](), 0
    for row in frame.select("id", frame["value"].cast("binary").alias("value")).toLocalIterator():
        ident, value = row["id"], None if row["value"] is None else bytes(row["value"])
        if ident is None:
            raise ValueError("the frame has a row without an id")
        if values.setdefault(ident, value) != value:
            raise RedriveError(f"the frame has {ident} twice, with different values: which one counts is not known")
        weight += len(ident) + len(value or b"")
        if weight > MOST_BYTES:
            raise RedriveError(f"the frame has more than {MOST_BYTES} bytes: redrive a part of it at a time")
    return values


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
