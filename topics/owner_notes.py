"""What the owners of partitions note in their transactions: partition 1 of the policy topic.

Operators and instances write to partition 0 (`policy_record.py`), and never in a transaction. Here only the owner of a
partition writes, always together with that partition's progress. So Kafka refuses a note of a former owner, and a note
is true of exactly the progress that was committed with it.

- `chunk/<topic>:<partition>:<n>`: which of the offsets from `n` * `CHUNK` on were settled before their turn, whatever
  decision did it. Progress says nothing of them. The owner deletes the chunk once its progress is behind them.
- `done/<decision>/<topic>:<partition>`: what a decision (`decision_record.py`) has done in a partition.
- `reset/<topic>:<partition>`: the resets of a main partition (`position_ranges.py`).

Each names the id of its topic, as progress does (`LogId.topic`): a note about a former topic of the same name means
nothing. Nor does a note of a greater version, which is named. Notes are untrusted until they are parsed. `OwnerNotes`
folds them: the last record of a key counts. Pure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from reconsume.topics import versions
from reconsume.topics.partition import Partition
from reconsume.topics.policy_record import BadRecord, shown
from reconsume.topics.position_ranges import RESET, PartitionResets, ResetNote, read_resets

PARTITION = 1
"""The partition of the policy topic that has these records, and nothing else."""
CHUNK_KEY, DONE_KEY = b"chunk/", b"done/"
"""The prefixes of the keys of chunks, and of what decisions have done."""
CHUNK = 65_536
"""Offsets of one chunk: its bitmap has 8 KiB, and compressed less than the log of a heartbeat."""
LARGEST = 32 * 1024
"""Bytes of a value. The longest chunk has 11 000."""
KEPT_FOR = 7 * 86_400_000
"""ms for which it is kept what a decision has done."""

_POSITION = r"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9})"
_CHUNK = re.compile(rf"chunk/{_POSITION}:(0|[1-9][0-9]{{0,14}})")
_DONE = re.compile(rf"done/([a-zA-Z0-9-]{{1,64}})/{_POSITION}")

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
K = TypeVar("K")
V = TypeVar("V")
TopicId: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]


class ChunkNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offsets of one chunk that were settled before their turn. `id`: of the topic. `bits`: a bitmap compressed by
    zlib, whose lowest bit is the first offset; 1 is settled."""

    id: TopicId
    bits: bytes
    v: int = versions.READ


class DoneNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a decision has done in one partition.

    `id`: of the topic. `scanned`: all that waited below this offset was looked at. `done`: records that it has settled.
    `without_effect`: records that it meant, and that had ended in another way before. `finished`: nothing is left to
    do. `at`: when the owner noted that (epoch ms).
    """

    id: TopicId
    scanned: Long = 0
    done: Long = 0
    without_effect: Long = 0
    finished: bool = False
    at: Long = 0
    v: int = versions.READ


class NotedChunk(msgspec.Struct, frozen=True):
    """A chunk. `note` is None if it was deleted."""

    source: Partition
    number: int
    note: ChunkNote | None


class NotedProgress(msgspec.Struct, frozen=True):
    """What a decision has done. `note` is None if it was deleted."""

    decision: str
    source: Partition
    note: DoneNote | None


Noted: TypeAlias = NotedChunk | NotedProgress | ResetNote | BadRecord

_ENCODER = msgspec.json.Encoder()
_CHUNKS, _DONES = msgspec.json.Decoder(ChunkNote), msgspec.json.Decoder(DoneNote)


def chunk_key(source: Partition, number: int) -> bytes:
    """Return the key of a chunk."""
    return f"chunk/{source.topic}:{source.number}:{number}".encode()


def done_key(decision: str, source: Partition) -> bytes:
    """Return the key of what a decision has done in a partition."""
    return f"done/{decision}/{source.topic}:{source.number}".encode()


def render_note(note: ChunkNote | DoneNote) -> bytes:
    """Return a note's value, as JSON."""
    return _ENCODER.encode(note)


def pack_bits(bits: bytes | bytearray) -> bytes:
    """Return the bitmap of a chunk as its note has it."""
    return zlib.compress(bytes(bits).rstrip(b"\0"), 1)


def unpack_bits(packed: bytes) -> bytearray | None:
    """Return the bitmap of a chunk, of all of its offsets; None if it is broken."""
    unpacking = zlib.decompressobj()
    try:
        bits = unpacking.decompress(packed, CHUNK // 8 + 1)  # bounded: it may be a decompression bomb
    except zlib.error:
        return None
    if len(bits) > CHUNK // 8 or not unpacking.eof:
        return None
    return bytearray(bits.ljust(CHUNK // 8, b"\0"))


def settled_in(number: int, bits: bytes | bytearray) -> list[int]:
    """Return the offsets of a chunk that were settled, ascending."""
    content = bits.rstrip(b"\0")
    return [number * CHUNK + bit for bit in range(len(content) * 8) if content[bit >> 3] >> (bit & 7) & 1]


def parse_note(key: bytes | None, value: bytes | None) -> Noted:
    """Return the content of a record of this partition. Never raises."""
    if value is not None and len(value) > LARGEST:
        return BadRecord(f"the value has {len(value)} bytes, and may have {LARGEST}")
    if key is not None and key.startswith(RESET):
        said = read_resets(key, value)
        return BadRecord(said) if isinstance(said, str) else said
    text = (key or b"").decode("ascii", errors="replace")
    if (match := _CHUNK.fullmatch(text)) is not None:
        source, chunk = Partition(match[1], int(match[2])), int(match[3])
        note = None if value is None else versions.decoded(_CHUNKS, value, "the chunk is")
        return BadRecord(note) if isinstance(note, str) else NotedChunk(source, chunk, note)
    if (match := _DONE.fullmatch(text)) is not None:
        source = Partition(match[2], int(match[3]))
        done = None if value is None else versions.decoded(_DONES, value, "the note is")
        return BadRecord(done) if isinstance(done, str) else NotedProgress(match[1], source, done)
    return BadRecord(f"the key {shown(key)} is none of an owner's notes")


class NotesOfPartition:
    """What owners have noted about one partition: its chunks by their number, what decisions have done in it, and its
    resets (None: it had none)."""

    def __init__(self) -> None:
        self.chunks: dict[int, ChunkNote] = {}
        self.done: dict[str, DoneNote] = {}
        self.resets: PartitionResets | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is noted that must be known before a delivery."""
        return not self.chunks and self.resets is None


class OwnerNotes:
    """The notes of a policy topic, folded. `wanted`: the partitions that they are about; None: all.

    `bad`: why a record was ignored, as a sentence; of several the last one.
    """

    def __init__(self, wanted: Collection[Partition] | None = None) -> None:
        self.partitions: dict[Partition, NotesOfPartition] = {}
        self.bad = ""
        self._wanted = wanted

    def of(self, source: Partition) -> NotesOfPartition:
        """Return what is noted about a partition; nothing, if nothing is."""
        return self.partitions.get(source) or NotesOfPartition()

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record, in the order of the log."""
        match parse_note(key, value):
            case BadRecord(text=text):
                self.bad = text
            case NotedChunk(source=source, number=number, note=note) if self._is_wanted(source):
                _put(self.partitions.setdefault(source, NotesOfPartition()).chunks, number, note)
            case NotedProgress(decision=decision, source=source, note=done) if self._is_wanted(source):
                _put(self.partitions.setdefault(source, NotesOfPartition()).done, decision, done)

            case ResetNote(partition=source, resets=resets) if self._is_wanted(source):
                self.partitions.setdefault(source, NotesOfPartition()).resets = resets

    def _is_wanted(self, source: Partition) -> bool:
        return self._wanted is None or source in self._wanted


def _put(kept: dict[K, V], key: K, value: V | None) -> None:
    kept.pop(key, None)
    if value is not None:
        kept[key] = value
