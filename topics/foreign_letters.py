"""Read the dead letters of other systems: where the record was, and why it failed (contract 4.8).

Pure. `dlq import --from` turns each into a dead letter of the group. Anyone may write to a foreign topic: each value
has one strict form, a malformed one counts as absent, and nothing here raises. The names come from the classes named at
each table. The caller (`sidecar/dlq/foreign_topic.py`) checks whether Kafka has the record that the headers name.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import msgspec

from reconsume.topics import foreign_values as forms
from reconsume.topics.foreign_headers import foreign_life, read_foreign
from reconsume.topics.foreign_values import Form
from reconsume.topics.reasons import LONGEST_CLASS, reason_text
from reconsume.topics.retry_headers import Headers, RetryState

LONGEST_MESSAGE = 4_096
"""Bytes of an exception's message that are looked at."""
CLASS_NAME = re.compile(rb"[A-Za-z_$][A-Za-z0-9_$.]{0,1023}")
WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class ForeignSystem(enum.StrEnum):
    """The systems whose dead letters can be imported."""

    SPRING = "spring"
    CONNECT = "connect"
    ROCKETMQ = "rocketmq"


class LetterTable(msgspec.Struct, frozen=True):
    """The headers of one system's dead letters. Of several names the earlier one wins.

    `origins`: the headers with topic, partition and offset of the record, which count only together. `first`: of
    several values of one of these, the first one counts, otherwise the last. `classes`: those of the exception's class,
    the innermost exception first; `messages`: of its message. Of these the last value counts.
    """

    origins: tuple[tuple[str, str, str], ...] = ()
    partition: Form = forms.PARTITION
    offset: Form = forms.DIGITS
    first: bool = False
    classes: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


TABLES: Mapping[ForeignSystem, LetterTable] = {
    # DeadLetterPublishingRecoverer writes DLT_*; with @RetryableTopic, DeadLetterPublishingRecovererFactory names the
    # same headers without `dlt`. Each failure appends one more set of origins, so the first is of the first topic.
    ForeignSystem.SPRING: LetterTable(
        origins=(
            ("kafka_original-topic", "kafka_original-partition", "kafka_original-offset"),
            ("kafka_dlt-original-topic", "kafka_dlt-original-partition", "kafka_dlt-original-offset"),
        ),
        partition=forms.INT32,
        offset=forms.INT64,
        first=True,
        classes=(
            "kafka_dlt-exception-cause-fqcn",
            "kafka_exception-cause-fqcn",
            "kafka_dlt-exception-fqcn",
            "kafka_exception-fqcn",
        ),
        messages=("kafka_dlt-exception-message", "kafka_exception-message"),
    ),
    # DeadLetterQueueReporter, with errors.deadletterqueue.context.headers.enable=true. All values are text.
    ForeignSystem.CONNECT: LetterTable(
        origins=(("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset"),),
        classes=("__connect.errors.exception.class.name",),
        messages=("__connect.errors.exception.message",),
    ),
    # A record of RocketMQ was never in Kafka: its origin is the topic that a bridge has filled. No exception is kept.
    ForeignSystem.ROCKETMQ: LetterTable(),
}


def foreign_reason(headers: Headers, system: ForeignSystem) -> str:
    """Return why the record failed, as RETRY_REASON has it: the exception's class in kebab case, and its message."""
    table = TABLES[system]
    names = (class_in_kebab_case(value) for value in _last_values(headers, table.classes))
    messages = (value[:LONGEST_MESSAGE].decode(errors="replace") for value in _last_values(headers, table.messages))
    return reason_text(next(filter(None, names), f"imported-from-{system}"), next(filter(None, messages), ""))


def class_in_kebab_case(name: bytes) -> str:
    """Return the simple name of a Java class: `out-of-stock-exception`; empty if there is none."""
    if CLASS_NAME.fullmatch(name) is None:
        return ""
    names = [one for one in re.split(r"[.$]", name.decode("ascii")) if one and not one.isdecimal()]
    words = WORD_BEGINS.sub("-", names[-1]) if names else ""
    return words.replace("_", "-").strip("-").lower()[:LONGEST_CLASS]


def foreign_dead_letter(
    headers: Headers, system: ForeignSystem, position: tuple[str, int, int], timestamp: int, now: int
) -> RetryState | str:
    """Return the retry state of a foreign dead letter, or a sentence that says why there is none.

    `position` and `timestamp` are those of the record in the foreign topic; the record counts as failed then. Times are
    epoch ms; one after `now` counts as `now`.
    """
    foreign = read_foreign(headers, () if system is ForeignSystem.CONNECT else (system,))
    if system is ForeignSystem.ROCKETMQ:
        if foreign is None:
            return "it has no number of retries in RECONSUME_TIME"
        origin: tuple[str, int, int] | None = position
    else:
        origin = _origin(headers, TABLES[system])
    if origin is None:
        return f"it has no headers of {system} with a topic, a partition and an offset"
    failed_at = min(timestamp, now)
    if foreign is None:
        topic, partition, offset = origin
        state = RetryState(id=f"{topic}:{partition}:{offset}", topic=topic, timestamp=failed_at)
    else:
        state = foreign_life(foreign, origin, failed_at, now)
    return msgspec.structs.replace(state, first_failed_at=failed_at, reason=foreign_reason(headers, system))


def _origin(headers: Headers, table: LetterTable) -> tuple[str, int, int] | None:
    """Return topic, partition and offset of the first origin of which all three are in their form."""
    said = dict(reversed(headers) if table.first else headers)
    for names in table.origins:
        topic, partition, offset = (said.get(name) for name in names)
        if topic is None or partition is None or offset is None:
            continue
        read = forms.NAME.read(topic), table.partition.read(partition), table.offset.read(offset)
        if isinstance(read[0], str) and isinstance(read[1], int) and isinstance(read[2], int):
            return read[0], read[1], read[2]
    return None


def _last_values(headers: Headers, names: tuple[str, ...]) -> list[bytes]:
    said = dict(headers)
    return [value for name in names if (value := said.get(name)) is not None]
