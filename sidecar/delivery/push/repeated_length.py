"""Mend a head that gives its length more than once, each time the same. Pure.

RFC 9110 §8.6 lets a recipient take the copies for one. Services write two if their framework and a part of it both set
the header. Lengths that differ stay: nobody knows then where the answer ends.
"""

from __future__ import annotations

import re

END = b"\r\n\r\n"
INTERIM = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9][ \r]")
LENGTH = b"content-length"


def without_repeated_length(answer: bytes) -> bytes | None:
    """Return the bytes with one `Content-Length` in the head of the final answer.

    None if that head is not complete yet. Empty if there is nothing to mend.
    """
    start = 0
    while INTERIM.match(answer, start):
        end = answer.find(END, start)
        if end < 0:
            return b""
        start = end + len(END)
    end = answer.find(END, start)
    lines = answer[start : end if end >= 0 else len(answer)].split(b"\r\n")
    if end < 0:
        return None if any(map(is_length, lines)) else b""
    lengths = [value.strip() for line in lines if is_length(line) for value in line.partition(b":")[2].split(b",")]
    if len(lengths) < 2 or len(set(lengths)) > 1:
        return b""
    kept = [line for line in lines if not is_length(line)]
    return answer[:start] + b"\r\n".join((*kept, b"Content-Length: " + lengths[0])) + answer[end:]


def is_length(line: bytes) -> bool:
    """Return whether a header line gives the body's length."""
    return line[: len(LENGTH)].lower() == LENGTH and line[len(LENGTH) : len(LENGTH) + 1] == b":"
