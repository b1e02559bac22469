"""`docs/interface.md` names every field of a verdict, and every status of a handle."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from reconsume.sidecar.delivery.envelope import Envelope
from reconsume.sidecar.delivery.pull.lease_table import HandleStatus
from reconsume.sidecar.delivery.push.batch_verdicts import read_batch_answer
from reconsume.sidecar.delivery.verdict import WORDS, VerdictBody, VerdictRules, verdict_from_response
from tests.support.sidecar.push_requests import a_record

PAGE = (Path(__file__).parents[2] / "docs" / "interface.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- interface: (\w+) -->\n\n```\w+\n(.*?)\n```\n", PAGE, re.S))
JSON = [(b"content-type", b"application/json")]


def first_column(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [name for cell in re.findall(r"(?m)^\| (`[^|]+) \|", section) for name in re.findall(r"`([^`]+)`", cell)]


def test_every_field_of_a_verdict_has_a_row_and_every_word_its_name() -> None:
    assert set(first_column("Your response")) == set(VerdictBody.__struct_fields__)
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `verdict` |")]
    assert set(WORDS) <= set(re.findall(r"`([\w-]+)`", row))


def test_every_field_of_an_envelope_has_a_row() -> None:
    assert set(first_column("An envelope")) == {"group", *(field.name for field in msgspec.structs.fields(Envelope))}


def test_every_status_of_a_handle_has_a_row() -> None:
    assert first_column("Verdicts on leases")[-len(HandleStatus) :] == list(HandleStatus)


def test_the_header_and_the_body_of_the_page_ask_for_the_same() -> None:
    (header,) = re.findall(r"(?m)^Reconsume-Verdict: (.*)$", PAGE)
    by_header = verdict_from_response(200, [(b"reconsume-verdict", header.encode())], b"", VerdictRules(), 0)
    assert verdict_from_response(200, JSON, BLOCKS["verdict"].encode(), VerdictRules(), 0) == by_header


def test_the_list_of_verdicts_of_the_page_is_read_as_it_says() -> None:
    records = [
        a_record(offset=offset, source=a_record().source._replace(topic="orders", number=0)) for offset in (0, 1)
    ]
    ids = {entry["id"] for entry in json.loads(BLOCKS["verdicts"])["verdicts"]}
    assert ids == {record.id for record in records}
    judged = read_batch_answer(records, 200, JSON, BLOCKS["verdicts"].encode(), VerdictRules(), 0)
    assert [type(outcome).__name__ for outcome in judged.outcomes] == ["Committed", "Rejected"]  # type: ignore[union-attr]
