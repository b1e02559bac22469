"""Learn from the log of a producer's client what no call tells: which connections broke, and which topics are denied.

The client sends a request again on a new connection if the old one broke before the answer. The call that waits sees
one slow success. No callback reports the break either: `error_cb` is not called for it, and the client's own line is
left out for 30 s if it repeats the one before (`rd_kafka_broker_set_error`, 2.16). With `debug=broker` every change of
a connection's state is a line, at four lines a transaction. The client puts the line into its queue before it sends
anything again, and `poll` hands it over.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

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
        self._since = 0.0

    def watched(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the client's configuration with this log."""
        debug = f"{self._debug},broker" if self._debug else "broker"
        return {**config, "logger": self, "debug": debug}

    def clear(self) -> None:
        """Forget what was seen: a transaction begins, so nothing is unanswered."""
        self.broke = False
        self.denied.clear()
        self._idle.clear()
        self._since = time.monotonic()

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
