"""`redrive_rows`: send dead letters back from a frame, each once, with other values if need be.

The rows reach the driver one partition at a time. The redrive itself is `sidecar/dlq/redrive_rows.py`, in a process of
its own: only one implementation may write the group's history of redrives, and no Spark job imports the sidecar.
"""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType

from reconsume.spark.consumer.client import native_client
from reconsume.spark.consumer.rules import Rules

PROGRAM = "reconsume.sidecar.dlq.redrive_rows"


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
    task: dict[str, object] = {"who": f"{_user()}@{socket.gethostname()}", "dry_run": dry_run}
    if kafka is not None or client is not None:
        names = rules.names
        task["config"] = {
            "group": names.group,
            "topics": list(rules.topics),
            "topic_prefix": names.template,
            "kafka": native_client(kafka, client),
            "deliver": {"mode": "spark"},
        }
    elif rules.file:
        task["file"] = rules.file
    else:
        raise ValueError("write the brokers as kafka={'bootstrap.servers': …}, or make the rules by rules_from")
    with subprocess.Popen([sys.executable, "-m", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        try:
            with suppress(BrokenPipeError), process.stdin as lines:  # it says why it has ended
                lines.write(f"{json.dumps(task)}\n".encode())
                for row in frame.select("id", frame["value"].cast("binary").alias("value")).toLocalIterator():
                    if row["id"] is None:
                        raise ValueError("the frame has a row without an id")
                    value = None if row["value"] is None else b64encode(row["value"]).decode()
                    lines.write(f"{json.dumps({'id': row['id'], 'value': value})}\n".encode())
                lines.write(b"end\n")
        except BaseException:
            process.kill()  # without the end it would do nothing
            raise
        answer = process.stdout.read()
    try:
        result = json.loads(answer)
    except ValueError:
        raise RedriveError(f"the redrive ended with {process.returncode}; run it again") from None
    if error := result.pop("error"):
        raise RedriveError(error)
    return Redrives(**result)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"
