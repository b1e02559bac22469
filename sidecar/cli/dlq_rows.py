"""How dead letters are shown: rows, and a safe look at a value. Nothing is read here.

A value may be anything. What is shown of it is JSON, text or hexadecimal digits; what a terminal would obey is escaped
where it is printed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sidecar.cli.output import Row
from sidecar.cli.policy_plan import clock
from sidecar.core.redrive import Letter, Verdict

if TYPE_CHECKING:
    from sidecar.edges.dlq_survey import Kind, Tally

LIST = ("id", "died", "reason", "topic", "times", "redrives", "state", "place", "fault")
PLAN = ("action", "reason", "topic", "target", "letters", "why")
SHOWN = 4_096
"""Bytes of a value that are shown."""
PARSED = 64 * 1024
"""Bytes of a value that is still tried as JSON."""

BEFORE = {
    Verdict.READY: "redrive",
    Verdict.REDRIVEN: "redriven before",
    Verdict.QUARANTINED: "quarantined",
    Verdict.FORGOTTEN: "forgotten",
    Verdict.UNFIT: "unfit",
}
AFTER = {**BEFORE, Verdict.READY: "redriven"}


def list_row(letter: Letter, verdict: Verdict) -> Row:
    """A dead letter in a list."""
    life = letter.life
    return {
        "id": letter.id,
        "died": clock(letter.record.timestamp),
        "reason": letter.reason,
        "topic": None if life is None else life.topic,
        "times": None if life is None else life.times,
        "redrives": letter.redrives,
        "state": str(verdict),
        "place": letter.place,
        "fault": letter.fault,
    }


def plan_rows(tally: Tally, ready: str, most_redrives: int, *, done: bool) -> list[Row]:
    """A row for each kind of letter, those that are redriven first; `ready` is the topic that they go to."""
    words = AFTER if done else BEFORE
    kinds = sorted(tally.counts.items(), key=lambda item: (item[0].verdict != Verdict.READY, -item[1], item[0]))
    return [
        {
            "action": words[Verdict(kind.verdict)] if kind.verdict in list(Verdict) else kind.verdict,
            "reason": kind.reason,
            "topic": kind.topic,
            "target": ready if kind.verdict == Verdict.READY else "",
            "letters": count,
            "why": why(kind, most_redrives),
            "ids": tally.samples[kind],
        }
        for kind, count in kinds
    ]


def why(kind: Kind, most_redrives: int) -> str:
    """Why letters are not redriven; empty for those that are."""
    match kind.verdict:
        case Verdict.QUARANTINED:
            return f"came back {most_redrives} times or more; --max-redrives takes more"
        case Verdict.FORGOTTEN:
            return "so old that Kafka no longer knows whether it was redriven; --forgotten takes it too"
        case _:
            return kind.error


def letter_row(letter: Letter, verdict: Verdict) -> dict[str, Any]:
    """All of a dead letter."""
    from sidecar.edges.dlq_files import export_line

    life, line = letter.life, export_line(letter)
    return {
        **list_row(letter, verdict),
        "reason_text": "" if life is None else life.reason,
        "first_failed": None if life is None or not life.first_failed_at else clock(life.first_failed_at),
        "real_timestamp": None if life is None else life.timestamp,
        "key_base64": line["key_base64"],
        "headers": line["headers"],
        "value": preview(letter.record.value),
    }


def letter_facts(letter: Letter, verdict: Verdict) -> Iterator[Row]:
    """A dead letter for people, a line a field; its value follows apart."""
    row = letter_row(letter, verdict)
    for name in (*LIST, "reason_text", "first_failed"):
        yield {"field": name, "value": row[name]}
    yield {"field": "key", "value": told(letter.record.key)}
    for name, value in letter.record.headers or []:
        yield {"field": f"header {name}", "value": told(value)}
    value = row["value"]
    yield {"field": "value", "value": f"{value['kind']}, {value['bytes']} bytes, sha256 {value['sha256']}"}


def told(data: bytes | None) -> str:
    """Bytes on one line."""
    if data is None:
        return "(null)"
    try:
        return data[:SHOWN].decode() or "(empty)"
    except UnicodeDecodeError:
        return f"0x{data[:64].hex()}{'…' if len(data) > 64 else ''}"


def preview(value: bytes | None) -> dict[str, Any]:
    """What a value looks like: its kind (null, empty, json, text, hex), length, hash, and the beginning of it."""
    kind, shown = looked_at(value)
    digest = None if value is None else hashlib.sha256(value).hexdigest()
    cut = len(shown) > SHOWN
    return {"kind": kind, "bytes": len(value or b""), "sha256": digest, "cut": cut, "shown": shown[:SHOWN]}


def looked_at(value: bytes | None) -> tuple[str, str]:
    """The kind of a value, and its text."""
    if not value:
        return ("null" if value is None else "empty"), ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "hex", "\n".join(value[at : at + 16].hex(" ") for at in range(0, min(len(value), SHOWN), 16))
    if len(value) <= PARSED and text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(text, parse_int=str)  # of a number with ten thousand digits it would not make an int
            return "json", indented(text)
        except (ValueError, RecursionError):
            pass
    return "text", text


TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def indented(text: str) -> str:
    """Good JSON, a line a member. Its numbers, strings and doubled keys stay as they are written."""
    out, depth, before = list[str](), 0, ":"
    for token in TOKEN.findall(text):
        opened, closes = before in ("{", "["), token in "}]"
        depth -= closes
        if before == "," or opened is not closes:
            out.append("\n" + "  " * depth)
        out.append(": " if token == ":" else token)
        depth += token in "{["
        before = token
    return "".join(out)
