"""What owners note: what is written is what is read, and what anybody else may write breaks nothing."""

import zlib

import pytest

from reconsume.topics.owner_notes import (
    CHUNK,
    ChunkNote,
    DoneNote,
    OwnerNotes,
    chunk_key,
    done_key,
    pack_bits,
    parse_note,
    render_note,
    unpack_bits,
)
from reconsume.topics.partition import Partition
from reconsume.topics.policy_record import BadRecord

LEVEL = Partition("billing-RETRY-30m", 2)


def test_a_chunk_is_read_as_it_was_written() -> None:
    bits = bytearray(CHUNK // 8)
    bits[0], bits[-1] = 0b101, 0x80
    notes = OwnerNotes()
    notes.take(chunk_key(LEVEL, 3), render_note(ChunkNote("0a0b0c0d", pack_bits(bits))))
    (number,) = notes.of(LEVEL).chunks
    chunk = notes.of(LEVEL).chunks[number]
    assert (number, chunk.id, unpack_bits(chunk.bits)) == (3, "0a0b0c0d", bits)


def test_the_last_record_of_a_key_counts_and_a_tombstone_deletes_it() -> None:
    notes = OwnerNotes()
    for done in (1, 7):
        notes.take(done_key("d-1", LEVEL), render_note(DoneNote("0a0b0c0d", 100, done)))
    assert notes.of(LEVEL).done == {"d-1": DoneNote("0a0b0c0d", 100, 7)}
    notes.take(done_key("d-1", LEVEL), None)
    assert notes.of(LEVEL).done == {}


def test_only_what_is_wanted_takes_memory() -> None:
    notes = OwnerNotes({LEVEL})
    notes.take(done_key("d", LEVEL._replace(number=3)), render_note(DoneNote("")))
    assert notes.partitions == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"policy", b"{}"),
        (b"chunk/orders:x:1", b"{}"),
        (b"chunk/orders:1:1", b"{}"),
        (b"chunk/orders:1:1", b"\xff"),
        (b"done/d/orders:1", b'{"id": "", "scanned": -1}'),
        (b"done/d/orders:1", b" " * 40_000),
        ("done/dé/orders:1".encode(), b"{}"),
    ],
)
def test_what_is_no_note_is_named_and_ignored(key: bytes | None, value: bytes) -> None:
    assert isinstance(parse_note(key, value), BadRecord)
    notes = OwnerNotes()
    notes.take(key, value)
    assert (notes.partitions, bool(notes.bad)) == ({}, True)


@pytest.mark.parametrize("key", [chunk_key(LEVEL, 1), done_key("d", LEVEL)])
def test_a_note_of_a_greater_version_is_named_and_ignored(key: bytes) -> None:
    newer = parse_note(key, b'{"v": 2, "id": "0a0b0c0d", "bits": "", "more": true}')
    assert newer == BadRecord("a newer version of Reconsume wrote it (v 2), and this one reads v 1")


def test_a_note_of_this_version_does_not_name_it() -> None:
    assert b'"v"' not in render_note(ChunkNote("0a0b0c0d", b"")) + render_note(DoneNote("0a0b0c0d"))


@pytest.mark.parametrize("packed", [b"", b"x", zlib.compress(b"\1" * (CHUNK // 8 + 1)), zlib.compress(b"\1")[:-1]])
def test_a_bitmap_that_is_broken_or_too_long_is_none(packed: bytes) -> None:
    assert unpack_bits(packed) is None
