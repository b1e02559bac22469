"""The table of headers in docs/topics.md: each that we write to Kafka, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from reconsume.topics.render_headers import RETRY_TRACEPARENT
from reconsume.topics.retry_headers import OURS, RETRY_HEADERS_DROPPED

PAGE = (Path(__file__).parents[2] / "docs" / "topics.md").read_text(encoding="utf-8")


def test_the_page_names_every_header_that_is_written() -> None:
    table = PAGE[PAGE.index("| header |") :].partition("\n\n")[0]
    told = re.findall(r"^\| `([A-Z_]+)` \| \S", table, re.MULTILINE)
    assert sorted(told) == sorted(OURS | {RETRY_HEADERS_DROPPED, RETRY_TRACEPARENT})
