"""Render templates to responses, and build the addresses in them. Runs on the event loop of the dashboard.

All output of a template is escaped twice: characters that are not printable, or that change the direction of writing,
are written as Python escapes; then HTML is escaped. A record may hold anything. The functions at the end, which format
texts, times and lengths, are filters of the templates.

Companies serve tools below a path of a shared host: `https://tools.example.org/reconsume/`. `ui.base_path` is that
path, here `/reconsume`. Every link, form, redirect, static file and htmx request has it as a prefix. `address` is the
only place that builds one; templates call it as `url`, and Python code calls `Renderer.redirect`. Elsewhere in the
package a path such as `/dlq` names a page (a route, or the current page in the navigation) and is never sent to a
browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse

from reconsume.sidecar.clock import utc, wall
from reconsume.sidecar.dlq.preview import BEGINNING, snippet
from reconsume.sidecar.printable import as_of, noun_of, plural, printable
from reconsume.sidecar.ui.security import ValueGate
from reconsume.topics.durations import render_duration
from reconsume.topics.events import author_of

HIDDEN = Markup('<span class="small">(hidden)</span>')
"""What stands for what a reader may not see."""
FOLDER = Path(__file__).parent
SECOND, DAY = 1_000, 86_400_000
LAST = 253_402_300_800_000
"""ms of the year 10000, which no browser reads as a time."""
SNIPPET = 160
"""Characters that a list shows of a key or a value."""


def address(base_path: str, path: str, **query: object) -> str:
    """Return the address of a page as a browser must request it. `path`: within the dashboard. A field of the query
    that is None is left out."""
    fields = {name: value for name, value in query.items() if value is not None}
    return f"{base_path}{path}{'?' if fields else ''}{urlencode(fields, quote_via=quote)}"


def environment(base_path: str = "", prefix: str = "") -> Environment:
    """Return the environment of the templates: an unknown name is an error, and all output is escaped.

    `url` builds the addresses of pages below `prefix`, the path of one of many groups; `url_of_all` those above it.
    """
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=harmless,
    )
    made.filters.update(
        moment=moment,
        length=length,
        cut=cut,
        ago=ago,
        as_of=as_of,
        due=due,
        iso=iso,
        begins=begins,
        plural=plural,
        noun=noun_of,
        fact=fact,
        short=short,
        duration=render_duration,
        private=private,
    )
    made.globals.update(
        url=partial(address, base_path + prefix), url_of_all=partial(address, base_path), author=author_of
    )
    return made


@pass_context
def private(context: Context, shown: object) -> object:
    """Return what a page shows of a key, a value, a header, a text or a reason of an operator: itself, or that it is
    hidden from this reader."""
    return shown if context["values"] else HIDDEN


def harmless(value: object) -> object:
    """Return a value for a page: own markup unchanged, None as an empty text, text without characters that are not
    printable."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


class Renderer:
    """Renders a template with the values that every page has, and sends a browser to another page.

    `gate`: which readers may see what the templates mark as `private`.
    """

    def __init__(self, shared: Mapping[str, Any], gate: ValueGate, base_path: str, prefix: str = "") -> None:
        """`prefix`: as in `environment`."""
        self._templates = environment(base_path, prefix)
        self._shared, self._gate, self._base_path = dict(shared), gate, base_path + prefix

    def __call__(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template to a response. Every page has `now`, in epoch ms, and `values`: whether its reader may
        see what is private."""
        known = {"now": wall(), **self._shared, **values}
        known["values"] = self._gate.opens_to(known["session"])
        return HTMLResponse(self._templates.get_template(name).render(known), status)

    def redirect(self, path: str, **query: object) -> RedirectResponse:
        """Return the response that has the browser show another page of the dashboard (303: by GET)."""
        return RedirectResponse(address(self._base_path, path, **query), 303)


# --- formats ----------------------------------------------------------------------------------------------------------


def cut(text: str, most: int) -> str:
    """Return the text, cut to at most `most` characters."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def moment(at: int) -> str:
    """Format epoch ms in UTC; an empty text for 0 or less, which means no time."""
    return utc(at, "%Y-%m-%d %H:%M:%S") if at > 0 else ""


def length(milliseconds: int) -> str:
    """Format a length of time in few words: in ms below a second, else in its two largest units."""
    if milliseconds < 0:
        return f"-{length(-milliseconds)}"
    if milliseconds < SECOND:
        return f"{milliseconds}ms"
    if milliseconds >= 10 * DAY:
        return f"{milliseconds // DAY}d"
    size = next((size for size in (DAY, 3_600_000, 60_000) if milliseconds >= size), SECOND)
    smaller = {DAY: 3_600_000, 3_600_000: 60_000}.get(size, SECOND)
    return render_duration(milliseconds // smaller * smaller)


def ago(at: int, now: int) -> str:
    """Format the time from `at` to `now` (both epoch ms)."""
    return "never" if at <= 0 else f"{length(max(0, now - at) // SECOND * SECOND) if now - at >= SECOND else '0s'} ago"


def due(at: int, now: int) -> str:
    """Format when something is due, seen from `now` (both epoch ms). What waits and is not due is parked."""
    if at <= 0:
        return "parked"
    if at - now >= SECOND:
        return f"due in {length((at - now) // SECOND * SECOND)}"
    return "due now" if now - at < SECOND else f"overdue by {length((now - at) // SECOND * SECOND)}"


def iso(at: int) -> str:
    """Format epoch ms as a browser's script reads it; an empty text for what is no time."""
    return utc(at) if 0 < at < LAST else ""


def fact(value: object) -> str:
    """Format a value of an action, of a policy or of the audit log in words: no brackets, no quotes of a programmer."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name} {_field(name, one)}" for name, one in value.items())
        case list() | tuple():
            return " or ".join(map(fact, value))
        case None:
            return "none"
        case _:
            return printable(str(value))


def _field(name: str, value: object) -> str:
    """Format a field of a filter; its times are epoch ms."""
    return f"{moment(value)} UTC" if name in ("since", "until") and isinstance(value, int) else fact(value)


def begins(data: bytes | None) -> str:
    """Return how a value that a list has kept begins, in few words."""
    shown = snippet(data, SNIPPET)
    more = data is not None and len(data) >= BEGINNING and not shown.endswith("…")
    return f"{shown}…" if more else shown


def short(count: int) -> str:
    """Format a count in few characters: 950, 1.2k, 34k, 1.2M."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.0f}{sign}" if count >= 10 * size else f"{count / size:.1f}{sign}"
    return str(count)
