"""Bytes made of other bytes, by a seed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

LARGEST = 100_000
"""Bytes of a mutation; a few are as large as that, to find what takes too long."""
TOKENS = (
    *(b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\t", b'"', b"\\", b"\\ud800"),
    *(b"{", b"}", b"[", b"]", b":", b",", b"&a ", b"*a", b"<<: ", b"!!python/object:x", b"---\n", b"%", b"- ", b"? "),
    *(b"-1", b"0", b"00", b"1e999", b"NaN", b"9" * 30, b"9" * 5000, b"2147483648", b"9223372036854775808", b"null"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Host: localhost\r\n", b"Upgrade: h2c\r\n"),
)


def mutated(seeds: Sequence[bytes], random: Random) -> bytes:
    """A seed, changed in one to six places."""
    data = random.choice(seeds)
    for _ in range(random.randint(1, 6)):
        data = random.choice(CHANGES)(data, seeds, random)[:LARGEST]
    return data


def cut(data: bytes, _seeds: Sequence[bytes], random: Random) -> bytes:
    """Without a part."""
    begin, end = span(data, random)
    return data[:begin] + data[end:]


def flip(data: bytes, _seeds: Sequence[bytes], random: Random) -> bytes:
    """With another byte."""
    place = random.randrange(len(data) + 1)
    return data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]


def insert(data: bytes, _seeds: Sequence[bytes], random: Random) -> bytes:
    """With something that means something somewhere."""
    begin, end = span(data, random)
    return data[:begin] + random.choice(TOKENS) + data[random.choice((begin, end)) :]


def repeat(data: bytes, _seeds: Sequence[bytes], random: Random) -> bytes:
    """With a part again and again."""
    begin, end = span(data, random)
    times = random.choice((2, 2, 3, 10, 100, 3_000))
    return data[:begin] + data[begin:end][: LARGEST // times] * times + data[end:]


def splice(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    """With a part of another one."""
    other = random.choice(seeds)
    (begin, end), (first, last) = span(data, random), span(other, random)
    return data[:begin] + other[first:last] + data[end:]


CHANGES: tuple[Callable[[bytes, Sequence[bytes], Random], bytes], ...] = (
    cut,
    flip,
    flip,
    insert,
    insert,
    repeat,
    splice,
)


def span(data: bytes, random: Random) -> tuple[int, int]:
    """A part, mostly a short one."""
    begin = random.randrange(len(data) + 1)
    length = random.choice((1, 2, 4, 16, len(data)))
    return begin, min(len(data), begin + random.randint(0, length))
