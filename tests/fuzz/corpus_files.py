"""Inputs that once broke a parser: kept as files, tried each time."""

from __future__ import annotations

import hashlib
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def inputs_of(target: str) -> list[bytes]:
    """All of a target's."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*.bin"))]


def keep(target: str, data: bytes) -> Path:
    """Keep one more; where it is."""
    path = CORPUS / target / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return path
