"""Bytes that no compression makes smaller, for what must be too large whatever packs it."""

from __future__ import annotations

from random import Random


def dense(size: int, seed: int = 1) -> bytes:
    """Return the same bytes for the same size and seed."""
    return Random(seed).randbytes(size)
