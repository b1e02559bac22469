"""The known redrives of one DLQ partition, stored as the metadata of its committed offset, and how one adds to them.

Pure. A redrive and everything that lists dead letters call it, each on its own thread.

A *redriven range* (`claims`) is a filter and the offset `next` that it has reached. Every letter below `next` that the
filter selects was redriven. So a million letters need no more room than one. Another filter is checked letter by letter
against all ranges, and neither skips nor repeats one. Letters that were redriven by their id are kept as single
offsets.

Kafka forgets committed offsets (`offsets.retention.minutes`, a week by default) before it forgets dead letters. From
`known_since` (epoch ms) on every redrive is known. For an older letter outside all ranges it is unknown whether it was
redriven.

`RedriveCourse` follows one redrive through one partition, and computes the range that it stores there. A redrive every
hour with another `--since` would store a new range each time, until Kafka has no room for more (at 333). So an earlier
range that differs only in `since` is extended instead. That is allowed as long as the redrive leaves out no dead letter
that the earlier range selects.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.position_ranges import Resets, is_superseded
from reconsume.topics.retry_headers import LARGEST_COUNT, LARGEST_LONG

CLOCKS_DIFFER = 3_600_000
"""ms by which the clocks of a person's machine and of a broker may differ."""

TAG = "rd1."
_OURS = re.compile(r"rd[0-9]+\.")
"""The beginning of every version's tag. The number rises when the versions before cannot read what follows."""
LONGEST = 4_096
"""Characters. Kafka's default of `offset.metadata.max.bytes`."""
MOST_BYTES = 256 * 1024
"""Bytes that metadata may decompress to: it may be a decompression bomb."""
MOST_REDRIVES_EVER = LARGEST_COUNT - 1
"""The number of redrives from which on a record is left, whatever the request says. RETRY_REDRIVES ends at
LARGEST_COUNT."""
MOST_LEFT = 50
"""Letters of one filter in one partition that Kafka may refuse. With more, the fault is not in single records."""


LOOK_BACK = 10_000
"""Offsets that a redrive reads again at most, to see whether an earlier range can be extended: a second's reading.
Without it, letters between two runs that the later one does not select would keep the earlier range from being
extended."""


# Redrives are remembered as filters, and not as offsets: a filter depends on the letter alone, so a range stays true,
# and ranges may overlap. Kafka forgets the group's progress (7 days) before the dead letters (30): what is older is
# `forgotten`.
class RedrivenRange(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, forbid_unknown_fields=True):
    """A filter whose letters below offset `next` were redriven, except the offsets `left`, which Kafka refused.

    `topics`: only letters of these main topics count, because the configuration of that redrive had no others.
    """

    filter: Filter
    next: int
    topics: tuple[str, ...]
    left: tuple[int, ...] = ()

    @property
    def scope(self) -> tuple[Filter, tuple[str, ...]]:
        """The dead letters that the range is about, at any offset."""
        return self.filter, self.topics

    def covers(self, letter: Letter) -> bool:
        """Whether the letter was redriven."""
        offset = letter.record.offset
        return offset < self.next and offset not in self.left and self.reaches(letter)

    def reaches(self, letter: Letter) -> bool:
        """Whether the range selects letters like this one, at any offset."""
        retry_state = letter.retry_state
        return retry_state is not None and retry_state.topic in self.topics and self.filter.selects(letter)

    def speaks_of(self, letter_filter: Filter, topics: tuple[str, ...]) -> bool:
        """Whether the range selects every letter that `letter_filter` selects of these topics."""
        return letter_filter.within(self.filter) and set(topics) <= set(self.topics)

    def within(self, other: RedrivenRange) -> bool:
        """Whether `other` covers every letter that this range covers."""
        said = all(offset in self.left or offset >= self.next for offset in other.left)
        return self.next <= other.next and said and other.speaks_of(self.filter, self.topics)


class Copies(msgspec.Struct, frozen=True):
    """The letters of one partition that do not count, because another one with their id and attempt does.

    See `copies.py`.

    `of_open`: the one that counts was not redriven yet. `of_redriven`: it was.
    """

    of_open: OffsetRanges = NONE
    of_redriven: OffsetRanges = NONE

    def __contains__(self, offset: int) -> bool:
        return offset in self.of_open or offset in self.of_redriven


class RedriveHistory(msgspec.Struct, frozen=True):
    """The redrives of one partition. `topic` is the id that Kafka gave its topic."""

    topic: str
    known_since: int
    claims: tuple[RedrivenRange, ...] = ()
    done: frozenset[int] = frozenset()
    """Offsets of letters that were redriven by their id."""
    skipped: OffsetRanges = NONE
    """Offsets of letters that redrives passed over as copies while the letter that counts was open. The claims do not
    cover them: if that letter was outside a redrive's filter, it would otherwise count as a copy of a redriven one."""
    copies: Copies = Copies()
    """The copies that are in the DLQ now. That is read with the DLQ, and not kept here."""
    dismissed: dict[tuple[str, Attempt], int] = {}
    """When a person has dismissed letters (epoch ms), by id and attempt. That is kept in the policy topic, not
    here."""
    resets: Resets = {}
    """What resets of positions have left, of the topics as they are now. That is kept in the policy topic, too."""

    def dismisses(self, letter: Letter) -> bool:
        """Whether a person has dismissed the letter; one of the same name that died later is another death."""
        retry_state = letter.retry_state
        if not self.dismissed or retry_state is None:
            return False
        at = self.dismissed.get((retry_state.id, attempt_of(retry_state)))
        return at is not None and letter.record.timestamp <= at + CLOCKS_DIFFER

    def supersedes(self, letter: Letter) -> bool:
        """Whether a reset has had the record delivered again, in a later cycle."""
        state = letter.retry_state
        return state is not None and is_superseded(self.resets, state.id, state.cycle)

    def covers(self, letter: Letter) -> bool:
        """Whether the letter was redriven."""
        offset = letter.record.offset
        return offset in self.done or (
            offset not in self.skipped and any(claim.covers(letter) for claim in self.claims)
        )

    @property
    def next(self) -> int:
        """The offset below which every letter was redriven that may be. Tools show it as the group's position."""
        return max((claim.next for claim in self.claims if _broad(claim.filter)), default=0)


def _broad(letter_filter: Filter) -> bool:
    return replace(letter_filter, since=0, below=0) == Filter(below=0)


class NewerPast(msgspec.Struct, frozen=True):
    """A history that a newer version of Reconsume has written. A history is read as a whole or not at all.

    Ignoring an unknown condition would make a range wider than it was. Letters that wait would then count as redriven
    for ever.
    """


class _Stored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    known_since: int
    claims: tuple[RedrivenRange, ...]
    steps: tuple[int, ...]
    skipped: tuple[int, ...] = ()
    """In turn the gap before each range of skipped copies, and its length."""


def encode_past(history: RedriveHistory) -> str:
    """Return the metadata. It is longer than `LONGEST` if Kafka has no room for the history."""
    ordered = sorted(history.done)
    steps = tuple(offset - before for before, offset in zip([0, *ordered], ordered, strict=False))
    skipped, before = list[int](), 0
    for begin, end in history.skipped.ranges:
        skipped += (begin - before, end - begin)
        before = end
    # Without copies it is as versions wrote it that know none.
    stored = (history.topic, history.known_since, history.claims, steps, *([skipped] if skipped else []))
    data = msgspec.json.encode(stored)
    return TAG + base64.b85encode(zlib.compress(data, 9)).decode()


def decode_past(metadata: str | None) -> RedriveHistory | NewerPast | None:
    """Return the history in the metadata of a committed offset.

    None if the metadata is not Reconsume's or is broken. NewerPast if a newer version wrote it.
    """
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
    except msgspec.ValidationError:  # complete, by its checksum, but not as this version writes it
        return NewerPast()
    except (zlib.error, binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    offset, done = 0, set()
    for step in stored.steps:
        offset += step
        done.add(offset)
    ranges, end = list[tuple[int, int]](), 0
    for gap, length in zip(stored.skipped[::2], stored.skipped[1::2], strict=False):
        ranges.append((end + gap, end + gap + length))
        end += gap + length
    return RedriveHistory(stored.topic, stored.known_since, stored.claims, frozenset(done), OffsetRanges(ranges))


def eligibility(letter: Letter, request: RedriveRequest, history: RedriveHistory) -> Eligibility | None:
    """Return what a redrive does with a letter; None if its filter does not select the letter."""
    if not request.filter.selects(letter):
        return None
    if history.dismisses(letter):
        return Eligibility.DISMISSED
    if letter.retry_state is None or letter.fault:
        return Eligibility.UNFIT
    if history.supersedes(letter):  # also of what a redrive would pass over: it stays so longer than the DLQ keeps it
        return Eligibility.SUPERSEDED
    if letter.record.offset in history.copies:
        return Eligibility.COPY
    if history.covers(letter):
        return Eligibility.REDRIVEN
    if letter.redrives >= min(request.most_redrives, MOST_REDRIVES_EVER):
        return Eligibility.QUARANTINED
    # What a skipped copy is a copy of may have been redriven, and Kafka has deleted it since.
    is_unknown = letter.record.timestamp < history.known_since or letter.record.offset in history.skipped
    if is_unknown and not request.forgotten:
        return Eligibility.FORGOTTEN
    return Eligibility.READY


def claimed(request: RedriveRequest, history: RedriveHistory) -> Filter:
    """Return the filter of the range that this redrive stores for the partition.

    It is the request's filter without the letters that the redrive leaves: those redriven too often, and the forgotten
    ones.
    """
    since = request.filter.since if request.forgotten else max(request.filter.since, history.known_since)
    return replace(
        request.filter, since=since, below=min(request.filter.below, request.most_redrives, MOST_REDRIVES_EVER)
    )


def topics_in(request: RedriveRequest) -> tuple[str, ...]:
    """Return the main topics of the range that this redrive stores."""
    topics = sorted(set(request.topics) & set(request.filter.topics))
    return tuple(topics or sorted(set(request.topics)))


def earlier(request: RedriveRequest, history: RedriveHistory) -> tuple[RedrivenRange, ...]:
    """Return the ranges with the same filter as this redrive, or with one that differs only by an earlier `since`.

    Below them, every letter that this redrive selects was redriven.
    """
    letter_filter, topics = claimed(request, history), topics_in(request)
    same = replace(letter_filter, since=0)
    return tuple(
        claim
        for claim in history.claims
        if replace(claim.filter, since=0) == same and claim.speaks_of(letter_filter, topics)
    )


def first_open(request: RedriveRequest, history: RedriveHistory, begin: int) -> int:
    """Return the lowest offset at which the redrive may still find a letter. `begin`: where the partition begins."""
    first = max((begin, *(min((claim.next, *claim.left)) for claim in earlier(request, history))))
    if not request.forgotten:
        return first
    orphans = (offset for offset in history.skipped if begin <= offset and offset not in history.copies)
    return min(first, next(orphans, first))


def tidied(history: RedriveHistory, begin: int) -> RedriveHistory:
    """Return the history without entries that are below the partition's beginning, or covered by a wider range."""
    claims = [
        replace(claim, left=tuple(offset for offset in claim.left if offset >= begin))
        for claim in history.claims
        if claim.next > begin
    ]
    kept = tuple(
        claim
        for index, claim in enumerate(claims)
        if not any(
            claim.within(other) and (index > other_index or not other.within(claim))
            for other_index, other in enumerate(claims)
            if other is not claim
        )
    )
    done = frozenset(offset for offset in history.done if offset >= begin)
    return replace(history, claims=kept, done=done, skipped=history.skipped.within(begin, LARGEST_LONG))


def fits(history: RedriveHistory) -> bool:
    """Whether Kafka has room for the history."""
    return len(encode_past(history)) <= LONGEST


def read_from(request: RedriveRequest, history: RedriveHistory, begin: int) -> int:
    """Return the offset at which to begin reading, for a redrive that may find letters from `begin` on.

    It is lower than `begin` if an earlier range may be extended.
    """
    reached = [claim.next for claim in earlier(request, history) if claim.next <= begin]
    return max((offset for offset in reached if begin - offset <= LOOK_BACK), default=begin)


class RedriveCourse:
    """The state of a redrive that reads from offset `begin` on. `note` must be called with each letter, in order."""

    def __init__(self, request: RedriveRequest, history: RedriveHistory, begin: int) -> None:
        self._request, self._begin = request, begin
        self._own = RedrivenRange(claimed(request, history), 0, topics_in(request))
        self._claims = tuple(claim for claim in earlier(request, history) if claim.next >= begin)
        self._ends: dict[tuple[Filter, tuple[str, ...]], int] = {}
        """For each earlier range: the offset of the first letter that it selects and that this redrive leaves."""
        self._refused: set[int] = set()

    def note(self, letter: Letter, verdict: Eligibility | None, history: RedriveHistory) -> None:
        """Record a letter that this redrive leaves, if an earlier range selects it."""
        if verdict in (Eligibility.READY, Eligibility.REDRIVEN, Eligibility.COPY, Eligibility.SUPERSEDED):
            return  # a copy does not end a range: `advanced` keeps those that it must not cover
        for claim in self._claims:
            scope, offset = claim.scope, letter.record.offset
            if scope != self._own.scope and scope not in self._ends and offset >= claim.next and claim.reaches(letter):
                if history.covers(letter):
                    return
                self._ends[scope] = offset

    def advanced(self, history: RedriveHistory, taken: Iterable[int], refused: Collection[int]) -> RedriveHistory:
        """Return the history after the letters at the offsets `taken` are redriven.

        The letters that Kafka `refused` are left for another run. Every letter of the request below the last of these
        offsets must have been passed to `note`. Call `committed` once the transaction is committed.
        """
        offsets = set(taken)
        if self._request.filter.ids:
            return replace(history, done=history.done | offsets)
        open_ = (self._refused | set(refused)) - offsets
        reached = max((0, *(offset + 1 for offset in (*offsets, *refused))))
        base = self._base(history, reached, open_)
        left = tuple(sorted((set(base.left) | open_) - offsets))
        claim = replace(base, next=max(base.next, reached), left=left)
        skipped = history.skipped.union(history.copies.of_open.within(self._begin, reached))
        if offsets.intersection(skipped):
            skipped = OffsetRanges.of(set(skipped) - offsets)
        others = (other for other in history.claims if other.scope != base.scope)
        return replace(history, claims=(*others, claim), skipped=skipped)

    def committed(self, taken: Iterable[int], refused: Iterable[int]) -> None:
        """Record that a transaction was committed. A letter that was left may be taken by a later one."""
        self._refused = (self._refused | set(refused)) - set(taken)

    def _base(self, history: RedriveHistory, reached: int, refused: Collection[int]) -> RedrivenRange:
        """Return the range to extend up to offset `reached`: an earlier one if allowed, else this redrive's own."""
        mine = {claim.scope: claim for claim in history.claims}
        for claim in self._claims:
            now = mine.get(claim.scope)
            whole = claim.scope != self._own.scope and self._ends.get(claim.scope, reached) >= reached
            if now is not None and whole and len({*now.left, *refused}) <= MOST_LEFT:
                return now
        return mine.get(self._own.scope, self._own)
