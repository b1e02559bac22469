"""What the push client is told, as one frozen value. No default here is read from the environment."""

from __future__ import annotations

import msgspec

LONGEST_BODY = 64 * 1024
LONGEST_ENTRY = 2 * 1024
"""Bytes for each further verdict in a list: an id of 280 characters and a reason of 256, escaped in JSON."""


class PushSettings(msgspec.Struct, frozen=True):
    """How records are pushed; all times in milliseconds."""

    group: str
    """The consumer group, sent as `Reconsume-Group`."""
    timeout_ms: int
    """From the call to the end of the answer (`deliver.timeout`); after the write it is a failed attempt."""
    concurrency: int
    """Deliveries outstanding at most. The core keeps to it; there is one connection for each."""
    forward_headers: tuple[str, ...] = ()
    """Names or globs, without regard to case, of the record's own headers to send as HTTP headers."""
    envelope: bool = False
    """Send the JSON envelope instead of the bare value: it carries header order, duplicates and nulls faithfully."""
    dead_letter_statuses: frozenset[int] = frozenset()
    """Statuses that refuse the record for good; they win over a throttle, a 2xx wins over them."""
    connect_timeout_ms: int = 5_000
    """A connection on loopback is made at once or not at all; waiting out `timeout_ms` would hide an outage."""
    idle_ms: int = 1_500
    """How long an idle connection is kept. Services close theirs after 2 to 5 s (gunicorn 2, Node 5, uvicorn 5): a
    request written while the close is on its way is lost, and would count as an attempt that the service never saw."""
    batch_size: int = 1
    """Records in one request at most."""
    longest_throttle_ms: int = 300_000
    """The cap on `Retry-After`: a service must not be able to stop its group for a day by one header."""

    @property
    def longest_body(self) -> int:
        """Bytes of an answer's body; verdicts are far smaller. A service that streams on must not fill our memory."""
        return LONGEST_BODY + (self.batch_size - 1) * LONGEST_ENTRY
