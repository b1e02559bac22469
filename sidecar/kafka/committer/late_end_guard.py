"""Guard against the late end of a transaction: find out whether a request of it may have been sent twice.

The client speaks the old transaction protocol: all transactions of a producer have one epoch, also on Kafka 4. When a
connection breaks before the answer, the client sends the request again on a new one. Its first copy may reach Kafka
later, by a slower way: a packet that the kernel repeats, a proxy. It then ends the *next* transaction (EndTxn), or
moves the group's offsets back (TxnOffsetCommit), and every call succeeds (measured on 3.9 and 4.3). So such a
producer takes no further transaction. A new one has a new epoch, and Kafka refuses what comes late under the old one.
"""

from __future__ import annotations

from reconsume.sidecar.kafka.committer.client_log import ClientLog

DOUBT_AFTER = 3.0
"""Seconds of one call after which its request may have been sent twice, whatever the client's log says. The client
closes a connection without an answer after 4 s (`connections.max.idle.ms`)."""


class LateEndGuard:
    """Judges each transaction of one producer. `doubtful`: a request of the last one may have been sent twice."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._longest = 0.0
        """Seconds of the longest call of the transaction."""
        self.doubtful = False

    def begin(self) -> None:
        """Forget the transaction before."""
        self._longest = 0.0

    def took(self, seconds: float) -> None:
        """Note how long one call took."""
        self._longest = max(self._longest, seconds)

    def judge(self) -> None:
        """Judge the transaction, once each line of the client's log about it has been heard."""
        self.doubtful = self._log.broke or self._longest > DOUBT_AFTER
