"""What is known of the redrives of one DLQ partition: the metadata of its committed offset. Pure.

A *claim* is a filter and how far it has come: every letter that the filter selects below `next` was redriven. So a
million letters cost what one does, another filter is checked letter by letter against all claims, and neither skips
nor repeats. What was redriven by its id is kept as single offsets.

Kafka forgets committed offsets (`offsets.retention.minutes`, a week by default) before it forgets dead letters.
`known_since` is the time (epoch ms) from which on everything is known: of an older letter without a claim nobody can
tell whether it was redriven.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib

import msgspec
from msgspec.structs import replace

from sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest

TAG = "rd1."
_OURS = re.compile(r"rd[0-9]+\.")
"""How the tag of any version begins: the number rises when older versions cannot read what follows."""
LONGEST = 4_096
"""Kafka's default of `offset.metadata.max.bytes`, in characters."""
MOST_BYTES = 256 * 1024
"""What metadata may unpack to: it may be a bomb."""
MOST_REDRIVES_EVER = 999_998
"""One more would not fit the header."""
MOST_LEFT = 50
"""Letters that Kafka refuses, of one filter in one partition; more are no single records' fault."""


class RedrivenRange(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, forbid_unknown_fields=True):
    """All that `filter` selects below offset `next` was redriven, but for those `left`, which Kafka had refused.

    `topics`: of these main topics alone, because the configuration that redrove had no others; empty: of any, which a
    version wrote that did not tell.
    """

    filter: Filter
    next: int
    left: tuple[int, ...] = ()
    topics: tuple[str, ...] = ()

    def covers(self, letter: Letter) -> bool:
        """Whether the letter was redriven."""
        offset = letter.record.offset
        return offset < self.next and offset not in self.left and self.reaches(letter)

    def reaches(self, letter: Letter) -> bool:
        """Whether it speaks of letters such as this, wherever they lie."""
        known = not self.topics or (letter.life is not None and letter.life.topic in self.topics)
        return known and self.filter.selects(letter)

    def speaks_of(self, asked: Filter, topics: tuple[str, ...]) -> bool:
        """Whether it speaks of all that `asked` selects of these topics."""
        return asked.within(self.filter) and (not self.topics or (bool(topics) and set(topics) <= set(self.topics)))

    def within(self, other: RedrivenRange) -> bool:
        """Whether `other` says all that this one says."""
        said = all(offset in self.left or offset >= self.next for offset in other.left)
        return self.next <= other.next and said and other.speaks_of(self.filter, self.topics)


class RedriveHistory(msgspec.Struct, frozen=True):
    """The redrives of one partition of the topic with Kafka's id `topic`."""

    topic: str
    known_since: int
    claims: tuple[RedrivenRange, ...] = ()
    done: frozenset[int] = frozenset()
    """Offsets of letters redriven by their ids."""

    def covers(self, letter: Letter) -> bool:
        """Whether the letter was redriven."""
        return letter.record.offset in self.done or any(claim.covers(letter) for claim in self.claims)

    @property
    def next(self) -> int:
        """The offset below which everything was redriven that may be: what tools show as the group's place."""
        return max((claim.next for claim in self.claims if _broad(claim.filter)), default=0)


def _broad(asked: Filter) -> bool:
    return replace(asked, since=0, below=0) == Filter(below=0)


class NewerPast(msgspec.Struct, frozen=True):
    """What a newer version of Reconsume knows of redrives. It is read as a whole or not at all.

    A condition that is passed over makes a claim wider than it was: letters that wait would count as redriven for ever.
    """


class _Stored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    known_since: int
    claims: tuple[RedrivenRange, ...]
    steps: tuple[int, ...]


def encode_past(past: RedriveHistory) -> str:
    """The metadata; longer than `LONGEST` where Kafka has no room for it."""
    ordered = sorted(past.done)
    steps = tuple(offset - before for before, offset in zip([0, *ordered], ordered, strict=False))
    data = msgspec.json.encode(_Stored(past.topic, past.known_since, past.claims, steps))
    return TAG + base64.b85encode(zlib.compress(data, 9)).decode()


def decode_past(metadata: str | None) -> RedriveHistory | NewerPast | None:
    """The past in a committed offset's metadata; None when it is not ours, or broken."""
    if metadata is None or _OURS.match(metadata) is None:
        return None
    if not metadata.startswith(TAG):
        return NewerPast()
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b85decode(metadata[len(TAG) :]), MOST_BYTES)
        if not unpacking.eof:
            return None
        stored = msgspec.json.decode(data, type=_Stored)
    except msgspec.ValidationError:  # whole, by its checksum, and not as this version writes it
        return NewerPast()
    except (zlib.error, binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    offset, done = 0, set()
    for step in stored.steps:
        offset += step
        done.add(offset)
    return RedriveHistory(stored.topic, stored.known_since, stored.claims, frozenset(done))


def eligibility(letter: Letter, wish: RedriveRequest, past: RedriveHistory) -> Eligibility | None:
    """What a redrive does with a letter; None: it is not asked for it."""
    if not wish.filter.selects(letter):
        return None
    if letter.life is None or letter.fault:
        return Eligibility.UNFIT
    if past.covers(letter):
        return Eligibility.REDRIVEN
    if letter.redrives >= min(wish.most_redrives, MOST_REDRIVES_EVER):
        return Eligibility.QUARANTINED
    if letter.record.timestamp < past.known_since and not wish.forgotten:
        return Eligibility.FORGOTTEN
    return Eligibility.READY


def claimed(wish: RedriveRequest, past: RedriveHistory) -> Filter:
    """The filter that a redrive's claim in this partition is made of: the wish without what it leaves."""
    since = wish.filter.since if wish.forgotten else max(wish.filter.since, past.known_since)
    return replace(wish.filter, since=since, below=min(wish.filter.below, wish.most_redrives, MOST_REDRIVES_EVER))


def topics_in(wish: RedriveRequest) -> tuple[str, ...]:
    """The main topics that a redrive's claim is about; empty: not known."""
    asked = sorted(set(wish.topics) & set(wish.filter.topics))
    return tuple(asked or sorted(set(wish.topics)))


def earlier(wish: RedriveRequest, past: RedriveHistory) -> tuple[RedrivenRange, ...]:
    """Claims of the same filter, or of one that only begins earlier: what the wish asks for below them was redriven."""
    asked, topics = claimed(wish, past), topics_in(wish)
    same = replace(asked, since=0)
    return tuple(
        claim for claim in past.claims if replace(claim.filter, since=0) == same and claim.speaks_of(asked, topics)
    )


def first_open(wish: RedriveRequest, past: RedriveHistory, begin: int) -> int:
    """The lowest offset at which the redrive may still find something; `begin`: where the partition begins."""
    return max((begin, *(min((claim.next, *claim.left)) for claim in earlier(wish, past))))


def tidied(past: RedriveHistory, begin: int) -> RedriveHistory:
    """The same without what is no longer needed: below the partition's beginning, or said by a wider claim."""
    claims = [
        replace(claim, left=tuple(offset for offset in claim.left if offset >= begin))
        for claim in past.claims
        if claim.next > begin
    ]
    kept = tuple(
        claim
        for place, claim in enumerate(claims)
        if not any(
            claim.within(other) and (place > other_place or not other.within(claim))
            for other_place, other in enumerate(claims)
            if other is not claim
        )
    )
    return replace(past, claims=kept, done=frozenset(offset for offset in past.done if offset >= begin))


def fits(past: RedriveHistory) -> bool:
    """Whether Kafka has room for it."""
    return len(encode_past(past)) <= LONGEST
