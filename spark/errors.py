"""The errors of the job and of the library, and how any error becomes one sentence for an operator."""

from __future__ import annotations


class JobError(RuntimeError):
    """An error whose text is one sentence: what is wrong, where, and what to do."""


class GroupNotFoundError(LookupError):
    """Kafka shows this user no topic of the group: there is no such group, or the right to see it is missing."""


class NoAnswerError(ConnectionError):
    """Kafka does not answer, or refuses the connection."""


def sentence_of(error: BaseException) -> str:
    """Return an error as one line: a JobError's text, or the class and the first line of any other, at most 500
    characters of it. The text of an error of Java can fill a whole screen."""
    if isinstance(error, JobError):
        return str(error)
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:500]}".rstrip(": ")
