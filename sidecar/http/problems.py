"""Errors of the HTTP API as `application/problem+json` (RFC 9457). Only their form is here, never their cause."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


def problem_body(status: int, detail: str, more: Mapping[str, object] | None = None) -> bytes:
    """Return the document of a problem. `about:blank` means that the status alone gives its kind."""
    title = HTTPStatus(status).phrase
    return msgspec.json.encode(
        {"type": "about:blank", "title": title, "status": status, "detail": detail, **(more or {})}
    )


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, more: Mapping[str, object] | None = None
) -> Response:
    """Return a response that says what is wrong, in one sentence for people.

    `more`: members for programs (RFC 9457 §3.2). `detail` must never repeat what the caller sent.
    """
    return Response(problem_body(status, detail, more), status, dict(headers or {}), MEDIA_TYPE)
