"""Errors of the job and its queries, each handled in its own way, and those that users of the library catch."""

from __future__ import annotations


class GoneError(Exception):
    """The Java process that ran the queries has ended; no query can be started in it."""


class GroupNotFoundError(LookupError):
    """Kafka shows this user no topic of the group: there is no such group, or the right to see it is missing."""


class NoAnswerError(ConnectionError):
    """Kafka does not answer, or refuses the connection."""


class TakenError(Exception):
    """What the job needs is in use: its checkpoint, by another job, or the address of its metrics."""


def first_line(error: BaseException) -> str:
    """Return the class name of an error and the first line of its text, at most 500 characters of it.

    The text of a Java error can fill a whole screen.
    """
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:500]}".rstrip(": ")
