"""Dead letters as rows, and the values of records for people. Nothing is read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconsume.sidecar.cli.terminal.output import Row, clock, talk, write
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.dlq.preview import one_line, preview
from reconsume.sidecar.printable import printable

LIST = ("id", "died", "state", "reason", "text", "times", "redrives", "topic", "place", "fault")
"""What decides stands first: a narrow terminal leaves out columns from the end."""
CUT = ("reason", "text", "fault")
"""Columns of long texts, which a narrow table cuts."""


def list_row(letter: Letter, verdict: Eligibility) -> Row:
    """Return a dead letter as a row of a list."""
    retry_state = letter.retry_state
    return {
        "id": letter.id,
        "died": clock(letter.record.timestamp),
        "reason": letter.reason,
        "text": letter.text,
        "topic": None if retry_state is None else retry_state.topic,
        "times": None if retry_state is None else retry_state.times,
        "redrives": letter.redrives,
        "state": str(verdict),
        "place": letter.position,
        "fault": letter.fault,
    }


def letter_row(letter: Letter, verdict: Eligibility) -> dict[str, Any]:
    """Return all fields of a dead letter."""
    from reconsume.sidecar.dlq.archive import export_line

    retry_state, line = letter.retry_state, export_line(letter)
    return {
        **list_row(letter, verdict),
        "reason_text": "" if retry_state is None else retry_state.reason,
        "first_failed": None
        if retry_state is None or not retry_state.first_failed_at
        else clock(retry_state.first_failed_at),
        "real_timestamp": None if retry_state is None else retry_state.timestamp,
        "key_base64": line["key_base64"],
        "headers": line["headers"],
        "value": preview(letter.record.value),
    }


def letter_facts(letter: Letter, verdict: Eligibility) -> Iterator[Row]:
    """Yield a dead letter for people, one field a line; its value is printed separately."""
    row = letter_row(letter, verdict)
    for name in (*LIST, "reason_text", "first_failed"):
        yield {"field": name, "value": row[name]}
    yield {"field": "key", "value": one_line(letter.record.key)}
    for name, value in letter.record.headers or []:
        yield {"field": f"header {name}", "value": one_line(value)}
    yield {"field": "value", "value": summary_of(row["value"])}


def summary_of(value: Mapping[str, object]) -> str:
    """Return in words what a value is, by its preview."""
    return f"{value['kind']}, {value['bytes']} bytes, sha256 {value['sha256']}"


def print_value(value: Mapping[str, Any], cut: str) -> None:
    """Print the preview of a value line by line; say `cut` if the value goes on."""
    for line in value["shown"].split("\n") if value["shown"] else ():
        write(printable(line))
    if value["cut"]:
        talk(cut)
