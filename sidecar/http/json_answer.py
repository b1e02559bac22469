"""Answer a call with JSON, which no cache may keep."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from reconsume.sidecar.http.json_body import MEDIA_TYPE


def json_answer(value: object, status: int = 200) -> Response:
    """Return a value, of types that JSON has, as the body of a response."""
    return Response(msgspec.json.encode(value), status, media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})
