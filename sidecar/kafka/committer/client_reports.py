"""What the client of a producer reports outside its calls: broken connections, denied topics, quotas, errors of writes.

*Lines of its log* (`ClientLog`). The client sends a request again on a new connection if the old one broke before the
answer. The call that waits sees one slow success. No callback reports the break either: `error_cb` is not called for
it, and the client's own line is left out for 30 s if it repeats the one before (`rd_kafka_broker_set_error`, 2.16).
With `debug=broker` every change of a connection's state is a line, at four lines a transaction. The client puts the
line into its queue before it sends anything again, and `poll` hands it over. The log also names topics that may not be
written: the error of the transaction names none.

*Late ends* (contract 7.5). The client speaks the old transaction protocol: all transactions of a producer have one
epoch, also on Kafka 4. The first copy of a request that was sent twice may reach Kafka later, by a slower path: a
packet that the kernel repeats, a proxy. It then ends the *next* transaction (EndTxn), or moves the group's offsets back
(TxnOffsetCommit), and every call succeeds (measured on 3.9 and 4.3). So the producer of a doubtful transaction takes no
further one. A new producer has a new epoch, and Kafka refuses what comes late under the old one.

*Quotas* (`Throttle`): the broker answers a request at once, and then reads no further one.

*Writes* (`EntryReports`): the error of each entry of a transaction, and where its copy lies.

Created and read by `transaction.py`; the client calls the receivers in `poll`, on the thread that polls.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import TypeAlias

from confluent_kafka import KafkaError, Message, ThrottleEvent

from reconsume.sidecar.core.commit_batch import WrittenAt
from reconsume.sidecar.kafka.committer.transaction_outcome import PRODUCER_ERRORS

DOWN = re.compile(r"^STATE .*\]: (.+?): Broker changed state (\w+) -> DOWN")
"""A connection, by the name of its broker, that is closed in this state. Newer releases may word it otherwise:
`test_late_ends` fails then."""
CONNECTING = frozenset({"INIT", "TRY_CONNECT", "CONNECT", "SSL_HANDSHAKE", "APIVERSION_QUERY", "DOWN"})
"""States of a connection that has carried no request yet."""
IDLE = re.compile(r"^FAIL .*\]: (\S+?): .*max idle time exceeded \((\d+)ms since last activity\)")
"""A connection that the client closes itself. It does not look at what is unanswered, only at the last byte."""
DENIED = re.compile(r'^ADDPARTS .*Failed to add partition "([^"]+)" \[\d+\] to transaction: .*[Aa]uthorization failed')
"""A topic that may not be written. The error of the transaction names none
(`rd_kafka_txn_handle_AddPartitionsToTxn`)."""

DOUBT_AFTER = 3.0
"""Seconds of one call after which its request may have been sent twice, whatever the client's log says. The client
closes a connection without an answer after 4 s (`connections.max.idle.ms`)."""


def text_of_an_abort(args: tuple[object, ...]) -> bool:
    """Whether a line of the client tells of an abort. The caller logs that, with what follows from it."""
    return bool(args) and args[0] in ("TXNERR", "ADDPARTS")


class ClientLog:
    """The logger of one producer's client. `poll` of the producer calls `log`, on the thread that polls.

    Lines that the client would have logged anyway go on to `logger`, and so do all with the user's own `debug`.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        logger = config.get("logger")
        self._onward = logger if isinstance(logger, logging.Logger) else logging.getLogger("reconsume.kafka")
        self._debug = str(config.get("debug", ""))
        self._idle: dict[str, float] = {}
        self.broke = False
        """Whether a connection closed since `clear` that may have carried a request of that time without its answer."""
        self.denied: set[str] = set()
        """The topics that Kafka has refused to add to a transaction since `clear`, for want of a right."""
        self.doubtful = False
        """Whether a request of the last transaction may have been sent twice."""
        self._since = self._longest = 0.0

    def watched(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the client's configuration with this log."""
        debug = f"{self._debug},broker" if self._debug else "broker"
        return {**config, "logger": self, "debug": debug}

    def clear(self) -> None:
        """Forget what was seen: a transaction begins, so nothing is unanswered."""
        self.broke = False
        self.denied.clear()
        self._idle.clear()
        self._since, self._longest = time.monotonic(), 0.0

    def took(self, seconds: float) -> None:
        """Note how long one call of the transaction took."""
        self._longest = max(self._longest, seconds)

    def judge(self) -> None:
        """Judge the transaction, once each line about it has been heard."""
        self.doubtful = self.broke or self._longest > DOUBT_AFTER

    def log(self, level: int, text: str, *args: object) -> None:
        """Take in one line (the client calls it)."""
        if (level > logging.DEBUG and not text_of_an_abort(args)) or self._debug:
            self._onward.log(level, text, *args)
        line = text % args
        if (closed := DOWN.match(line)) is not None:
            self._closed(*closed.groups())
        elif (idle := IDLE.match(line)) is not None:
            self._idle[idle[1].partition("/")[0]] = int(idle[2]) / 1_000
        elif (denied := DENIED.match(line)) is not None:
            self.denied.add(denied[1])

    def _closed(self, broker: str, state: str) -> None:
        """Note a connection that was closed.

        A planned close tells nothing if the connection has been silent since before `clear`: it carried no request of
        the transaction.
        """
        silent = self._idle.pop(broker.partition("/")[0], 0.0)
        if state not in CONNECTING and not broker.endswith("/bootstrap") and silent <= time.monotonic() - self._since:
            self.broke = True


class Throttle:
    """What the client has heard of a quota. `longest`: seconds of the longest wait since it was last set to 0."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._until = 0.0

    def hear(self, event: ThrottleEvent) -> None:
        """Take in that a broker reads nothing for a while (the client calls it, also with no wait when one is over)."""
        self.longest = max(self.longest, event.throttle_time)
        self._until = time.monotonic() + event.throttle_time

    def left(self) -> float:
        """Return the seconds until the brokers read again; 0 or less if they do."""
        return self._until - time.monotonic()


Errors: TypeAlias = dict[int, tuple[KafkaError, str]]
"""By index of the entry: the first error of one of its writes, and the topic and partition of that write."""
Located: TypeAlias = dict[int, WrittenAt]
"""By index of the entry: where its copy lies in a queue topic."""


class EntryReports:
    """The receiver of the reports of one entry's writes; the client calls its methods.

    It knows no producer, which holds thousands of these: no producer that was replaced would be freed.
    """

    __slots__ = ("_errors", "_index", "_located")

    def __init__(self, index: int, errors: Errors, located: Located) -> None:
        self._index, self._errors, self._located = index, errors, located

    def written(self, error: KafkaError | None, message: Message) -> None:
        """Take in the report of one write."""
        if error is None:
            return
        known = self._errors.get(self._index)
        # One write of an entry is refused. The client drops the others, and may report those first.
        if known is None or known[0].code() in PRODUCER_ERRORS:
            self._errors[self._index] = error, f"{message.topic()}[{message.partition()}]"

    def copied(self, error: KafkaError | None, message: Message) -> None:
        """Take in the report of the copy for a queue. The broker names no offset of one that was sent twice."""
        if error is not None:
            self.written(error, message)
        elif (offset := message.offset()) is not None and offset >= 0:
            self._located[self._index] = offset, message.timestamp()[1]
