"""The parts of a record that a user types: the value in a file or on stdin, the headers, and the bytes of a text."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from reconsume.sidecar.files import read_given, read_stream

LARGEST = 32 * 1024 * 1024
"""Bytes of a value. Kafka takes 1 MB by default."""


def header_of(text: str) -> tuple[str, bytes]:
    """Parse NAME=VALUE. Raises BadParameter if it has no name or no sign."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise typer.BadParameter(f"--header must be NAME=VALUE, and is {text[:40]!r}")
    return name, encoded(value, "--header")


def encoded(text: str, what: str) -> bytes:
    """Return the bytes that were typed, also where they are no UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as fault:
        raise typer.BadParameter(f"{what} holds half a character") from fault


def value_in(file: str) -> bytes:
    """Return the value in a file, or on stdin for `-`. Raises BadParameter if it cannot be read or is too large."""
    if file == "-":
        return value_on_stdin()
    try:
        return read_given(Path(file), LARGEST)
    except OSError as fault:
        raise typer.BadParameter(f"--value-file {file}: {fault.strerror or fault}") from fault


def value_on_stdin() -> bytes:
    """Read a value. Raises BadParameter if it is too large."""
    try:
        return read_stream(sys.stdin.buffer, LARGEST)
    except OSError as fault:
        raise typer.BadParameter(f"a value has at most {LARGEST} bytes") from fault
