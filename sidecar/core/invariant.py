"""What an object of the core claims of itself, in its `check`: between two calls each claim holds."""

from __future__ import annotations

from collections.abc import Mapping


class BrokenInvariantError(AssertionError):
    """The program is in a state that must not be. It is a fault of the program, whatever came from outside."""


def ensure(holds: bool, claim: str) -> None:
    """Raise BrokenInvariantError with a claim that does not hold."""
    if not holds:
        raise BrokenInvariantError(claim)


def ensure_all(claims: Mapping[str, bool]) -> None:
    """Raise BrokenInvariantError with the first of these claims that does not hold."""
    for claim, holds in claims.items():
        ensure(holds, claim)
