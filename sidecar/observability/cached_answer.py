"""Reuse an answer that is expensive to make, so that frequent callers take no time from the records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

SHARE = 0.05
"""Share of the time that rendering takes at most. A render of more than 50 ms takes more, since its answer is reused
for `LONGEST_HELD` only."""
LONGEST_HELD = 1.0
"""Seconds for which an answer is reused at most."""


def sparing(render: Callable[[], bytes], clock: Callable[[], float] = time.perf_counter) -> Callable[[], bytes]:
    """Return a function that gives the last answer of `render` again, so that rendering takes little of the time.

    Rendering takes about a twentieth of the time. An answer is reused for a second at most. The metrics of a group with
    a thousand partitions take 50 ms of the event loop, and any client may scrape them.
    """
    last, until = b"", -math.inf

    def scrape() -> bytes:
        nonlocal last, until
        begun = clock()
        if begun >= until:
            last = render()
            ended = clock()
            until = ended + min(LONGEST_HELD, (ended - begun) / SHARE)
        return last

    return scrape
