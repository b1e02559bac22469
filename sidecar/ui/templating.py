"""Render templates to responses, and build the addresses in them. Runs on the event loop of the dashboard.

All output of a template is escaped twice: characters that are not printable, then HTML.

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

from reconsume.sidecar.clock import wall
from reconsume.sidecar.printable import noun_of, plural, printable
from reconsume.sidecar.ui import text as words
from reconsume.sidecar.ui.charts import short
from reconsume.sidecar.ui.security import ValueGate
from reconsume.topics.durations import render_duration
from reconsume.topics.events import author_of

HIDDEN = Markup('<span class="small">(hidden)</span>')
"""What stands for what a reader may not see."""
FOLDER = Path(__file__).parent


def address(base_path: str, path: str, **query: object) -> str:
    """Return the address of a page as a browser must request it. `path`: within the dashboard. A field of the query
    that is None is left out."""
    fields = {name: value for name, value in query.items() if value is not None}
    return f"{base_path}{path}{'?' if fields else ''}{urlencode(fields, quote_via=quote)}"


def environment(base_path: str = "") -> Environment:
    """Return the environment of the templates: an unknown name is an error, and all output is escaped."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=harmless,
    )
    made.filters.update(
        moment=words.moment,
        length=words.length,
        cut=words.cut,
        ago=words.ago,
        due=words.due,
        iso=words.iso,
        begins=words.begins,
        plural=plural,
        noun=noun_of,
        fact=words.fact,
        short=short,
        duration=render_duration,
        private=private,
    )
    made.globals.update(url=partial(address, base_path), author=author_of)
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

    def __init__(self, shared: Mapping[str, Any], gate: ValueGate, base_path: str) -> None:
        self._templates = environment(base_path)
        self._shared, self._gate, self._base_path = dict(shared), gate, base_path

    def __call__(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template to a response. Every page has `now`, in epoch ms, and `values`: whether its reader may
        see what is private."""
        known = {"now": wall(), **self._shared, **values}
        known["values"] = self._gate.opens_to(known["session"])
        return HTMLResponse(self._templates.get_template(name).render(known), status)

    def redirect(self, path: str, **query: object) -> RedirectResponse:
        """Return the response that has the browser show another page of the dashboard (303: by GET)."""
        return RedirectResponse(address(self._base_path, path, **query), 303)
