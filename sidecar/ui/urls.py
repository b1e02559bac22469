"""The addresses of the dashboard's own pages, behind a proxy that serves it below a path of its own.

Companies serve tools as `https://tools.example.org/reconsume/`. `ui.base_path` is that path, here `/reconsume`. Some
proxies pass the path on unchanged, others strip the prefix. The dashboard needs no option for that:

- Every link, form, redirect, static file and htmx request has the prefix. `Urls` is the only place that builds one;
  templates call it as `url`, and Python code calls `Renderer.redirect`. Elsewhere in the package a path such as `/dlq`
  names a page (a route, or the current page in the navigation) and is never sent to a browser.
- `WithoutBasePath` strips the prefix from a request that still has it. A request without it is served unchanged. No
  page begins with the prefix, because the setting refuses one whose first segment is a page's.

All functions are pure, and run on the event loop of the dashboard.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send


class Urls:
    """Builds the address of a page as a browser must request it. `base`: `ui.base_path`, empty for the root."""

    def __init__(self, base: str = "") -> None:
        self.base = base
        self.cookie_path = base or "/"
        """The path for which a browser sends the session's cookie: no other tool of the same host gets it."""

    def __call__(self, path: str, **query: object) -> str:
        """Return the address of the page at `path`, an absolute path within the dashboard, with a query.

        A field that is None is left out.
        """
        fields = {name: value for name, value in query.items() if value is not None}
        return f"{self.base}{path}{'?' if fields else ''}{urlencode(fields, quote_via=quote)}"


class WithoutBasePath:
    """ASGI middleware that serves a request with the base path as one without it."""

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app, self._base = app, base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on. The base path alone is the first page."""
        path = scope.get("path", "")
        if self._base and (path == self._base or path.startswith(f"{self._base}/")):
            rest = path[len(self._base) :] or "/"
            scope = {**scope, "path": rest, "raw_path": quote(rest).encode()}
        await self._app(scope, receive, send)
