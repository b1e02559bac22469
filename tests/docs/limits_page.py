"""The page of limits, made from the constants: `python -m tests.docs.limits_page > docs/limits.md` renews it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from reconsume.sidecar.api import pull, retry, settle
from reconsume.sidecar.core import counters, hold_gate, outbox, progress, progress_codec, reason_classes
from reconsume.sidecar.core.pace.concurrency import MOST
from reconsume.sidecar.delivery.push import forwarded_headers, request, response_reader, settings
from reconsume.sidecar.delivery.relay import post_writer
from reconsume.sidecar.dlq import dismissals, settle_waiting
from reconsume.sidecar.http import bodies, connections, json_body, protocol
from reconsume.sidecar.kafka import client_config
from reconsume.sidecar.kafka.committer import replaceable_producer, transaction
from reconsume.sidecar.settings.model import ROWS
from reconsume.sidecar.view import copy
from reconsume.topics import (
    action_record,
    decision_record,
    hold_record,
    in_place_told,
    json_bounds,
    levels,
    policy_record,
    reasons,
    retry_headers,
    specs,
)

HEAD = """\
# Limits

Every bound that a service, a producer or an operator may meet. The page is made from the constants in the code, and a
test compares them. Where a setting is named, its value is the default.
"""


BOUNDS = progress.Bounds()
POST = (
    "4/3 of the largest `max.message.bytes` of the main topics (1 MB where it may not be seen) and "
    f"{retry.HEAD_ROOM >> 10} KiB"
)


class Limit(NamedTuple):
    """One row: what is bounded, its value, the setting that changes it (empty: none), and what happens beyond it."""

    what: str
    value: str
    setting: str
    beyond: str


def bytes_(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0 and count >= size:
            return f"{count // size} {unit}"
    return f"{count:,} bytes".replace(",", " ")


def number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def ms(count: int) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if count % size == 0 and count >= size:
            return f"{count // size} {unit}"
    return f"{count} ms"


def default_of(name: str) -> object:
    """The default of a setting, by its name."""
    row = ROWS[tuple(name.split("."))]
    return row.kind.take(row.default)


def setting(what: str, name: str, shown: object, beyond: str) -> Limit:
    return Limit(what, str(shown), f"`{name}`", beyond)


def sections() -> dict[str, Sequence[Limit]]:
    """The rows of the page, by heading."""
    limits = connections.Limits()
    return {
        "A push and its answer": (
            setting(
                "time for an answer",
                "deliver.timeout",
                ms(int(str(default_of("deliver.timeout")))),
                "a failure, `timeout`",
            ),
            setting(
                "time for the health URL's answer",
                "deliver.health_timeout",
                ms(int(str(default_of("deliver.health_timeout")))),
                "the service counts as not well",
            ),
            setting(
                "requests in flight",
                "deliver.concurrency",
                f"{default_of('deliver.concurrency')}, at most {MOST}",
                "further records wait",
            ),
            Limit("head of an answer", bytes_(response_reader.LONGEST_HEAD), "", "a broken answer"),
            Limit(
                "body of an answer that is read for a verdict",
                bytes_(settings.LONGEST_BODY),
                "",
                "[service.md](service.md) says what it means",
            ),
            Limit(
                "the same for each further record of a batch",
                bytes_(settings.LONGEST_ENTRY),
                "",
                "[service.md](service.md) says what it means",
            ),
            Limit("text of a reason in a verdict", f"{reasons.LONGEST_TEXT} characters", "", "cut"),
            Limit("class of a reason", f"{reasons.LONGEST_CLASS} characters", "", "cut"),
            Limit("a wait that an answer may ask for", ms(levels.LONGEST), "", "the ladder decides"),
            Limit(
                "head of a request", bytes_(forwarded_headers.BUDGET_BYTES), "", "headers that do not fit are left out"
            ),
            Limit(
                "record headers sent as HTTP headers",
                str(forwarded_headers.BUDGET_HEADERS),
                "",
                "the others are left out; the envelope has all",
            ),
            Limit("name of a header that is sent", f"{forwarded_headers.LONGEST_NAME} characters", "", "left out"),
            Limit(
                "a key sent as a header",
                bytes_(request.LONGEST_KEY),
                "",
                "`Reconsume-Key-Omitted` has its length; the envelope has the key",
            ),
        ),
        "Pull": (
            Limit(
                "calls of `receive` that wait",
                number(pull.MOST_WAITING),
                "",
                "503; calls that answer a record are not counted",
            ),
            setting(
                "records leased or ready",
                "pull.max_leased",
                number(int(str(default_of("pull.max_leased")))),
                "fetching pauses",
            ),
            Limit("records in one `receive`", number(pull.MOST_RECORDS), "", "400"),
            Limit("handles in one call", number(json_body.MOST_HANDLES), "", "400"),
            Limit("wait of a `receive`", ms(pull.LONGEST_WAIT_MS), "", "400"),
            Limit("invisible duration", ms(pull.LONGEST_INVISIBLE), "", "400; the least is `pull.min_invisible`"),
        ),
        "The HTTP API": (
            Limit("connections with a call under way", str(limits.connections), "", "503, but for probes and `/drain`"),
            Limit("connections more for probes and `/drain`", str(limits.reserve), "", "the oldest is closed"),
            setting("names of the API besides loopback", "api.hosts", "none", "421"),
            Limit("body of a call", bytes_(bodies.LONGEST), "", "413"),
            Limit(
                "body of a post to `/v1/retry`",
                POST,
                "",
                "413",
            ),
            Limit("time to send a body", f"{bodies.WITHIN:g} s", "", "408"),
            Limit("head of a call", bytes_(protocol.LONGEST_HEAD), "", "431"),
            Limit("headers of a call", str(protocol.MOST_HEADERS), "", "431"),
            Limit("posts that wait for Kafka", bytes_(post_writer.MOST_WAITING), "", "503; a single larger one passes"),
            Limit("time for a post", f"{post_writer.TRY_FOR:g} s", "", "503: nothing was written"),
            Limit("calls of `settle` under way", str(settle.MOST_AT_ONCE), "", "503"),
            Limit(
                "time to settle a record",
                f"{settle_waiting.FOLLOWED_S:g} s",
                "",
                "202: the decision is written; 503 where what waits was not read yet",
            ),
        ),
        "Records and topics": (
            setting(
                "bytes of records in one lane",
                "deliver.buffer_memory",
                bytes_(int(str(default_of("deliver.buffer_memory")))),
                "fetching pauses; one larger record passes",
            ),
            Limit(
                "bytes of a main topic fetched at a time, while its offsets have no gaps",
                bytes_(client_config.LITTLE),
                "`kafka.fetch.message.max.bytes`",
                f"one batch in any case, unpacked as a whole; else, and of own topics, {bytes_(client_config.WHOLE)}",
            ),
            Limit(
                f"bytes for the open records of a partition below its last {number(BOUNDS.window)} offsets, beyond "
                f"{number(progress.SPAN)} offsets from the first one",
                number(BOUNDS.far_bytes),
                "",
                "the partition pauses",
            ),
            setting(
                "records that wait in the queue of a partition",
                "retry.ordered_max_waiting",
                number(int(str(default_of("retry.ordered_max_waiting")))),
                "the partition pauses",
            ),
            Limit(
                "distance of the end of a queue from the first record that waits there",
                f"{number(progress.SPAN)} offsets",
                "",
                "the partition pauses",
            ),
            Limit(
                "metadata with a committed offset",
                bytes_(progress_codec.NEEDED),
                "",
                "brokers that take less (`offset.metadata.max.bytes`) are refused before the first delivery",
            ),
            Limit("copies of a partition that Kafka refuses", str(outbox.MOST_REFUSED), "", "the partition stops"),
            Limit(
                "records that are retried in place, as a heartbeat names them",
                f"{in_place_told.MOST}, in {number(in_place_told.LARGEST)} bytes",
                "",
                "those that fail longest are named; `retried_in_place` counts all",
            ),
            Limit(
                "a batch of copies, before it is packed",
                bytes_(client_config.BATCH_BYTES),
                "`kafka.batch.size`",
                f"smaller where a topic takes less, {bytes_(replaceable_producer.LEAST_BATCH)} at least",
            ),
            Limit(
                "room for our headers above a main topic's `max.message.bytes`",
                bytes_(specs.HEADER_ROOM),
                "",
                "`topics check` compares",
            ),
            Limit("`RETRY_REASON`", bytes_(reasons.LONGEST_REASON), "", "cut"),
            Limit(
                "text of a failure, from an answer and in an event",
                f"{reasons.LONGEST_TEXT} characters",
                "`deliver.failure_text`",
                "cut",
            ),
            Limit(
                "dismissed dead letters of a group",
                number(dismissals.MOST),
                "",
                "`settle` refuses; `dlq purge` makes room",
            ),
            Limit(
                "runs of commands in the list of actions",
                str(action_record.MOST_ACTIONS),
                "",
                "the oldest are deleted",
            ),
            Limit(
                "holds of a group that are in force",
                str(hold_record.MOST_HOLDS),
                "",
                "`hold` refuses; others on the topic are named and not obeyed",
            ),
            Limit(
                "decisions about waiting records that are open",
                number(decision_record.MOST_DECISIONS),
                "",
                "`settle` refuses; others on the topic are named and not carried out",
            ),
            Limit("time that a hold lasts", f"{hold_record.LONGEST_HOLD_MS // 86_400_000} d", "", "refused"),
            Limit(
                "held records of a lane, of partitions that are read on",
                number(hold_gate.MOST_HELD),
                "",
                "partitions with their part of it pause (`held`)",
            ),
            Limit(
                "retries and redrives that are counted",
                number(retry_headers.LARGEST_COUNT),
                "",
                "the count stays there",
            ),
            Limit(
                "classes of reasons of an instance, by UTC day",
                str(reason_classes.MOST),
                "",
                "`other`, with the class in the text; of statuses as many, then `http-4xx` and the like",
            ),
            Limit(
                "reasons that are counted apart in memory",
                f"{number(counters.MOST_REASONS)} pairs of topic and reason",
                "",
                "counted as `other`",
            ),
            Limit(
                "time without an answer about a topic",
                f"{transaction.TOPIC_LIMIT:g} s",
                "",
                "asked again; the topic is never taken for missing",
            ),
            Limit(
                "a view that is made from the events",
                f"{number(copy.BOUND.records)} records, {copy.BOUND.bytes // 1_000_000_000} GB of file",
                "`view.source`",
                "the oldest done records leave it, then new ones have no room; it says so",
            ),
            Limit(
                "JSON of ours on Kafka: how deep",
                f"{json_bounds.DEEPEST}; on the policy topic {policy_record.DEEPEST}",
                "",
                "the record is skipped and counted",
            ),
        ),
    }


TAIL = """
## What the Kafka client cannot carry

- **A NUL in a header's key**: the client (librdkafka) has C strings and cuts the key there; value and order are kept.
- **A header's key that is not UTF-8**: the record goes to the DLQ with key and value intact, `headers-unreadable`.
- **More than 100 000 headers**: the client shows such a record as one without headers, and Reconsume cannot tell the
  two apart. The record is delivered, retried and dead-lettered without its headers. `__dlq.errors.topic`, `.partition`
  and `.offset` of the dead letter name the record that still has them.
- **99 969 to 100 000 headers**: the record is delivered with its headers. Its copies could not be read together with
  Reconsume's own headers, so they have none of the record's, and `RETRY_HEADERS_DROPPED` says how many it had.
- **Kerberos, and Amazon's IAM login**: not in the client; `config check` says what to use.

## What compression costs and gets

Brokers bound a batch as it is packed, so a main topic may hold 3 MB of JSON in 200 KB. Copies are written as they are
until a topic refuses one for its size; from then on all copies of that instance are packed by zstd. That costs 8 µs of
CPU for a record of 1 KB, a tenth of a failed record. `kafka: {compression.type: …}` replaces this: with `zstd`, copies
are packed from the start; with `none`, `lz4`, `snappy` or `gzip`, a copy of a record that its producer packed smaller
may be refused, and waits in memory.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, rows in sections().items():
        parts.append(f"\n## {title}\n\n| what | limit | setting | beyond it |\n|---|---|---|---|\n")
        parts += [f"| {row.what} | {row.value} | {row.setting} | {row.beyond} |\n" for row in rows]
    return "".join(parts) + TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
