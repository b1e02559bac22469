"""The pages' queries about dead letters, each a blocking call: a list, one letter, many of them, an export.

Every call ends within seconds or raises BrokerError or ContractError. Call them on threads, as the pages do.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import IO, NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.dlq.archive import line_of
from reconsume.sidecar.dlq.copies import with_copies
from reconsume.sidecar.dlq.letters import Eligibility, RedriveRequest
from reconsume.sidecar.dlq.plan import judged
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.search import SearchResult, beginning, find_id, search
from reconsume.sidecar.dlq.topics import narrowed
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.ui.letter_form import LetterSearch
from reconsume.sidecar.ui.queries import LONGEST, Queries

MOST_LETTERS = 100
MOST_SCANNED = 200_000
MOST_EXPORTED = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of an export. It lies in a temporary file, so it takes disk and no memory."""
IN_MEMORY = 1024 * 1024
"""Bytes of an export that takes no disk."""


class Export(NamedTuple):
    """Dead letters as JSON lines, in a file of `size` bytes that stands at its beginning and is the caller's to close.

    `complete`: whether no letter was left out because of a bound.
    """

    file: IO[bytes]
    size: int
    letters: int
    complete: bool


class LetterQueries:
    """The queries about the dead letters of one group."""

    def __init__(self, looks: Queries) -> None:
        self._looks = looks

    def find(self, query: LetterSearch) -> SearchResult:
        """Return the newest dead letters of a search, with the beginnings of their keys and values."""
        within = self._looks.within(LONGEST)
        request = RedriveRequest(query.filter)
        return search(
            self._looks.letters, self._looks.policy, request, MOST_LETTERS, MOST_SCANNED, within, query.states,
            keep=beginning,
        )  # fmt: skip

    def every(self, query: LetterSearch, most: int) -> SearchResult:
        """Return the newest `most` dead letters of a search, without key, value and headers."""
        within = self._looks.within(LONGEST)
        request = RedriveRequest(query.filter)
        return search(self._looks.letters, self._looks.policy, request, most, MOST_SCANNED, within, query.states)

    def letter(self, position: str) -> SearchResult:
        """Return one dead letter by its position in the DLQ, or all with one id."""
        return find_id(self._looks.letters, self._looks.policy, position, MOST_SCANNED, self._looks.within(LONGEST))

    def export(self, query: LetterSearch) -> Export:
        """Write the dead letters of a search as `dlq export` does, up to MOST_EXPORTED and MOST_BYTES.

        Raises SetupError if there is no room for the file.
        """
        with ExitStack() as made:
            file = made.enter_context(tempfile.SpooledTemporaryFile(max_size=IN_MEMORY))
            try:
                letters, complete = self._write(query, file)
                size = file.tell()
                file.seek(0)
            except OSError as error:
                raise SetupError(f"there is no room for the export: {error.strerror}") from error
            made.pop_all()
        return Export(file, size, letters, complete)

    def _write(self, query: LetterSearch, file: IO[bytes]) -> tuple[int, bool]:
        topics, policy, tell = self._looks.letters, self._looks.policy, self._looks.within(LONGEST)
        everything = topics.layout()
        pasts = with_copies(topics, policy, everything, topics.pasts(everything, only_shown=True), tell)
        layout = narrowed(topics.since(everything, query.filter.since), query.filter, topics.topics)
        count = size = 0
        with Scan(topics, layout) as scan:
            for letter, verdict in judged(scan, RedriveRequest(query.filter), policy, pasts):
                tell(scan, count)
                if verdict is None or verdict not in query.states:
                    continue
                line = line_of(letter, is_copy=verdict is Eligibility.COPY).encode() + b"\n"
                if count == MOST_EXPORTED or (count and size + len(line) > MOST_BYTES):
                    return count, False
                file.write(line)
                count, size = count + 1, size + len(line)
        return count, True


def until(query: LetterSearch, at: int) -> LetterSearch:
    """Return the search without what died after `at` (epoch ms)."""
    return query._replace(filter=replace(query.filter, until=min(query.filter.until, at)))
