"""Headers under our names on a main topic: the group consumes another group's DLQ, or a producer writes them.

They mean nothing in this group. The service sees them like any other header, and a copy keeps them under another name,
because its own headers have these. Pure.
"""

from __future__ import annotations

from reconsume.topics.dead_letter_headers import DEAD_LETTER
from reconsume.topics.render_headers import DROPPED, without_ours
from reconsume.topics.retry_headers import OURS, Headers

ORIGINAL = "ORIGINAL_"
"""The prefix under which the copy of a main topic's record keeps what that record had under a name of ours: the group
consumes another group's DLQ. Such headers mean nothing here, and are put back nowhere."""


def kept_originals(headers: Headers) -> Headers:
    """Return the headers of a main topic's record for its copy: those under our names are kept under `ORIGINAL_<name>`.

    In a third group the older value wins, so that the first failure stays known.
    """
    own = without_ours(headers)
    if len(own) == len(headers):
        return own
    older = {name for name, _ in own}
    named = [(ORIGINAL + name, value) for name, value in headers if name in OURS or name in DEAD_LETTER]
    return own + [header for header in named if header[0] not in older]


def is_original(name: str) -> bool:
    """Return whether a header keeps what a record of another group had under a name of ours."""
    return name.startswith(ORIGINAL) and name[len(ORIGINAL) :] in DROPPED
