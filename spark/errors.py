"""Errors of a query that its supervisor tells apart."""

from __future__ import annotations


class GoneError(Exception):
    """The Java process that ran the queries is no more: nothing can be started in it."""


def first_line(error: BaseException) -> str:
    """The class and the first line of an error: what Java says goes on for a screen."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:500]}".rstrip(": ")
