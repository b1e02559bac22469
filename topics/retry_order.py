"""What only copies in a queue topic say: their order (RETRY_ORDER), and whether others or a person hold them. Pure.

Order within a key is this header, never where a copy lies in the queue: each retry writes the record again, at the end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

RETRY_ORDER = "RETRY_ORDER"
"""The order of a record among those of its key: `<offset>`, or `<offset>.<sequence>` for a redrive."""
RETRY_BEHIND = "RETRY_BEHIND"
"""`1` on a copy that only waits behind an earlier record of its key: it has not been delivered."""
BEHIND = b"1"
RETRY_PARKED = "RETRY_PARKED"
"""`1` on a copy whose retries are used up: it has no due time, and its key waits until a person settles it."""
PARKED = b"1"
RETRY_SETTLED = "RETRY_SETTLED"
"""The id of the decision that was carried out last on this copy, so that none acts twice."""
NONCE = re.compile(r"[0-9A-Za-z-]{1,64}")

LARGEST_OFFSET = 2**63 - 1
LAST = LARGEST_OFFSET + 1
"""Behind each sequence number."""
# No leading zeros: one order must not have two forms.
FORM = re.compile(rb"(0|[1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,18}))?")


class Order(NamedTuple):
    """The order of a record among those of its key. `rank` compares them.

    `offset`: where the first copy stands in the main topic. For a redrive it is where the main partition ended when the
    redrive was written, and `sequence` (1 or more) is the place among the redrives of that time.
    """

    offset: int
    sequence: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """What places are compared by: a record stands behind the redrives of the time when its offset was the end."""
        return self.offset, self.sequence or LAST


def render_order(order: Order) -> bytes:
    """Return the header's value."""
    return b"%d.%d" % order if order.sequence else b"%d" % order.offset


def parse_order(value: bytes) -> Order | None:
    """Return the order that a header names; None unless it has the strict form."""
    match = FORM.fullmatch(value)
    if match is None or max(int(match[1]), int(match[2] or 0)) > LARGEST_OFFSET:
        return None
    return Order(int(match[1]), int(match[2] or 0))
