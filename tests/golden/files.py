"""The files of the golden set: where they are, their form, and what of their text depends on the machine."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PACKED = {
    "rc1": (re.compile(r"(rc1[co]\.)([A-Za-z0-9_=-]+)"), base64.urlsafe_b64decode),
    "rd1": (re.compile(r"(rd1\.)(.+)"), base64.b85decode),
}


def golden(name: str) -> Any:
    """The values of one file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def text(values: object) -> str:
    """A file's text."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def unpacked(values: Any) -> Any:
    """The values with what is compressed laid open: each build of zlib packs in its own way, and all read all."""
    if isinstance(values, dict):
        return {name: unpacked(value) for name, value in values.items()}
    if isinstance(values, list):
        return [unpacked(value) for value in values]
    if isinstance(values, str) and (form := PACKED.get(values[:3])) is not None:
        pattern, decode = form
        return pattern.sub(lambda found: found[1] + zlib.decompress(decode(found[2])).hex(), values)
    return values
