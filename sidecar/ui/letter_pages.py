"""The pages of dead letters that only show: the list, and one letter with its headers and its value.

Each query is a blocking call on the threads of scans, and ends within seconds or raises BrokerError or ContractError.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.dead_letters import SearchResult, beginning, find_letters, search_letters
from reconsume.sidecar.dlq.letters import RedriveRequest
from reconsume.sidecar.dlq.preview import one_line, preview
from reconsume.sidecar.ui.endpoint import Site
from reconsume.sidecar.ui.letter_form import INPUTS, OPEN, SINCE, STATES, LetterSearch, parse_search
from reconsume.sidecar.ui.pages import LONGEST_TEXT
from reconsume.sidecar.ui.queries import LONGEST
from reconsume.sidecar.ui.security import Session
from reconsume.sidecar.ui.templating import cut

SEARCHED = frozenset({"key", "contains"})
"""Fields of a search that would tell what is in a record."""
MOST_HEADERS, LONGEST_NAME = 200, 256
"""Headers of a letter that are shown, and characters of their names. A record of 900 KB may have 200 000 headers."""
MOST_LETTERS = 100
MOST_SCANNED = 200_000


class LetterPages:
    """The endpoints of these pages."""

    def __init__(self, site: Site) -> None:
        self._render, self._scan, self._looks, self._gate = site.render, site.scan, site.looks, site.gate

    async def letters(self, request: Request, session: Session | None) -> Response:
        """Show the dead letters that match a search."""
        query = parse_search(request.query_params, wall())
        if SEARCHED & query.fields.keys() and not self._gate.opens_to(session):
            text = "Sign in to search by key or value: they are for readers who have signed in."
            return self._render("error.html", 403, session=session, here="/dlq", text=text)
        matches = await self._scan(lambda: self._find(query))
        reasons = sorted({letter.reason for letter, _ in matches.letters if letter.reason})
        return self._render(
            "letters.html", session=session, here="/dlq", matches=matches, asked=query.fields, reasons=reasons,
            since=list(SINCE), states=list(STATES), state=query.fields.get("state", OPEN),
            inputs=INPUTS,
        )  # fmt: skip

    def _find(self, query: LetterSearch) -> SearchResult:
        """Return the newest dead letters of a search, with the beginnings of their keys and values."""
        request, report = RedriveRequest(query.filter), self._looks.within(LONGEST)
        return search_letters(
            self._looks.letters, request, MOST_LETTERS, MOST_SCANNED, report, query.states, keep=beginning
        )

    async def letter(self, request: Request, session: Session | None) -> Response:
        """Show one dead letter, by its position in the DLQ or its id, with its headers and a preview of its value."""
        position, looks = request.query_params.get("place", "")[:LONGEST_TEXT], self._looks
        matches = await self._scan(lambda: find_letters(looks.letters, position, MOST_SCANNED, looks.within(LONGEST)))
        if not matches.letters:
            text = "There is no such dead letter (any more)."
            return self._render("error.html", 404, session=session, here="/dlq", text=text)
        (letter, verdict), *others = matches.letters
        every = letter.record.headers or []
        headers = [(cut(name, LONGEST_NAME), one_line(value)) for name, value in every[:MOST_HEADERS]]
        return self._render(
            "letter.html", session=session, here="/dlq", letter=letter, verdict=verdict, headers=headers,
            more=len(every) - len(headers), key=one_line(letter.record.key), value=preview(letter.record.value),
            others=others,
        )  # fmt: skip
