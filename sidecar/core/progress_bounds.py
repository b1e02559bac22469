"""How long progress may be, and what follows from that for the records that a partition may begin."""

from __future__ import annotations

from typing import NamedTuple

SPAN = 16_384
"""Offsets: up to this distance from the next one a bitmap says the whole done set.

It takes 2 048 bytes, at worst 2 748 characters as base64; Kafka takes 4 096 (`offset.metadata.max.bytes`). Where an
older version is in the group, nothing begins further off.
"""
LONGEST = 4_096
"""Characters of the metadata: Kafka's default of `offset.metadata.max.bytes`. Our longest has 2 911."""
NUMBERS = 124
"""Characters beside the done set: the tag, the numbers and the stamp at their longest, and a few of `SPARE`."""
SPARE = 40
"""Characters that an owner fills up behind a done set: if it crashes, the next one writes the same with the numbers of
the crash instead. That the brokers take so much is known then: they took it."""
FRAME = 48
"""Bytes of the far form beside the pairs and the bitmap: its counts, the last pair's, and those of the compression."""
SKIP = 4_096
"""Done offsets in a row from which on an owner does not read them: a seek costs as much as some thousand records."""


class Bounds(NamedTuple):
    """How far a partition may go beyond its first open record.

    `far`: at any distance; else within `span`. `window`: the last offsets, of which a bitmap says which are done.
    `far_bytes`: what the open records below the window may cost (`far_offsets.py`). `skip`: see SKIP. `most`:
    characters of metadata that the brokers take.
    """

    far: bool = False
    span: int = SPAN
    window: int = SPAN // 2
    far_bytes: int = 1_000
    skip: int = SKIP
    most: int = LONGEST

    @property
    def tight(self) -> bool:
        """Whether the brokers may take less than the longest progress."""
        return self.most < LONGEST

    def within(self, most: int) -> Bounds:
        """Return the bounds for brokers that take `most` characters; none at any distance where that is too little."""
        half = min(SPAN // 8, max(0, (most - NUMBERS) * 3 // 4 - FRAME)) // 2
        whole = Bounds()
        return self._replace(most=most, window=min(whole.window, half * 8), far_bytes=min(whole.far_bytes, half))
