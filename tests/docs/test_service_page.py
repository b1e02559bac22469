"""`docs/service.md` tells what an answer means: each row of its table is played.

To a bare record, to one in an envelope, and to a batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reconsume.sidecar.core.outcome import Committed, Failed, Postponed, Rejected, Throttled
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.batch_verdicts import WholeRefused, read_batch_answer, read_envelope_answer
from reconsume.sidecar.delivery.push.credentials import CA, CERTIFICATE, KEY, SECRETS, TOKEN, files_of
from reconsume.sidecar.delivery.push.dial import DISTRUST, REFUSED, UNTRUSTED
from reconsume.sidecar.delivery.push.health_check import by_status
from reconsume.sidecar.delivery.push.odd_verdicts import MEANING
from reconsume.sidecar.delivery.push.response_reader import Interpret, Judged, ResponseReader
from reconsume.sidecar.delivery.verdict import ODD_KINDS, VerdictRules, verdict_from_response
from reconsume.sidecar.observability import metrics
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.checks import without_effect
from reconsume.sidecar.settings.policy import build_policy
from tests.support.sidecar.push_requests import a_record

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
RECORDS = [a_record(offset=offset) for offset in (7, 8)]
RULES = VerdictRules(frozenset({422}))
READERS: dict[str, Interpret] = {
    "bare": verdict_from_response,
    "envelope": partial(read_envelope_answer, RECORDS[0].id),
    "batch": partial(read_batch_answer, RECORDS),
}
STATUSES = {
    "any": ["200 OK", "204 X", "301 X", "404 X", "422 X", "429 X", "500 X", "503 X"],
    "2xx": ["200 OK", "201 X", "204 X", "299 X"],
    "503 and Retry-After": ["503 X\r\nRetry-After: 5"],
    "in dead_letter_statuses": ["422 X"],
}
TYPES = {
    "none or text": ["", "Content-Type: text/plain\r\n", "Content-Type: application/json-seq\r\n"],
    "JSON": ["Content-Type: application/json\r\n", "content-type: Application/JSON; charset=utf-8\r\n"],
    "ours": ["Content-Type: application/vnd.reconsume+json\r\n"],
    "JSON, gzip": ["Content-Type: application/json\r\nContent-Encoding: gzip\r\n"],
    "ours, gzip": ["Content-Type: application/vnd.reconsume+json\r\nContent-Encoding: gzip\r\n"],
}
TYPES["JSON or ours"] = [*TYPES["JSON"], *TYPES["ours"]]
TYPES["any"] = [*TYPES["none or text"], *TYPES["JSON or ours"], *TYPES["JSON, gzip"]]
LONG = b'{"verdict": "retry", "padding": "' + b"x" * 68 * 1024 + b'"}'


class Row(NamedTuple):
    """One row of the table, as it stands on the page."""

    status: str
    header: str
    content_type: str
    body: str
    outcome: str
    odd: str


def rows() -> list[Row]:
    """Every row of the page's table."""
    table = PAGE.partition("| odd verdict |\n|---|---|---|---|---|---|\n")[2].partition("\n\n")[0]
    return [Row(*(cell.strip() for cell in line.split("|")[1:7])) for line in table.splitlines()]


ROWS = rows()
BODIES = {row.body: row.body.strip("`").encode() for row in ROWS if row.body.startswith("`")}
BODIES |= {"empty": b"", "65 KiB": LONG}


def answers(row: Row) -> Iterator[bytes]:
    """Every answer that the row stands for."""
    status = row.status.replace("`", "")
    headers = "".join(f"Reconsume-Verdict: {word}\r\n" for word in re.findall("`([^`]+)`", row.header))
    bodies = list(BODIES.values()) if row.body == "any" else [BODIES[row.body]]
    for line, kind, body in product(STATUSES.get(status, [f"{status} X"]), TYPES[row.content_type], bodies):
        if body and line.startswith("204"):
            continue
        yield f"HTTP/1.1 {line}\r\n{headers}{kind}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read(judge: Interpret, answer: bytes) -> tuple[Any, list[str]]:
    """What the answer means, and the odd verdicts in it."""
    odd: list[str] = []
    reading = ResponseReader(RULES, lambda: Now(0, 0), {}, odd.extend)
    reading.judge = judge
    judged = reading.feed(answer)
    assert judged is not None, "the answer is whole"
    assert reading.keep_alive, "the connection serves again"
    return judged, odd


def name_of(outcome: Judged) -> str:
    """The outcome in the page's words."""
    match outcome:
        case Committed():
            return "done"
        case Failed(reason=reason):
            return f"retry `{reason}`"
        case Rejected(reason=reason):
            return f"dead letter `{reason}`"
        case WholeRefused(outcome=outcome):
            return name_of(outcome)
        case Postponed():
            return "postponed"
        case Throttled():
            return "later"
    raise AssertionError(outcome)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_an_answer_means_what_the_page_says(row: Row, reader: str) -> None:
    """Given every answer that a row stands for, then it means the same to each reader, and is counted so."""
    for answer in answers(row):
        judged, odd = read(READERS[reader], answer)
        assert (name_of(judged), odd) == (row.outcome, [row.odd.strip("`")] if row.odd else []), answer[:200]


def test_the_health_url_is_judged_by_its_status_alone() -> None:
    """Given every answer of the page, then a 2xx or 3xx is well, and nothing else is, whatever stands beside it."""
    for answer in {answer for row in ROWS for answer in answers(row)}:
        judged, odd = read(by_status, answer)
        assert (name_of(judged) == "done") == answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 3")), answer[:200]
        assert odd == []


def test_where_only_the_header_counts_no_body_is_read() -> None:
    """Given `deliver.verdicts: header`, then every body says nothing, under our type too."""
    rules = VerdictRules(bodies=False)
    for body in BODIES.values():
        for kind in TYPES["JSON or ours"]:
            reading = ResponseReader(rules, lambda: Now(0, 0), {}, fail)
            answer = f"HTTP/1.1 200 OK\r\n{kind}Content-Length: {len(body)}\r\n\r\n".encode() + body
            assert name_of(reading.feed(answer) or fail(())) == "done"


def fail(kinds: tuple[str, ...]) -> Any:
    """What must not be called."""
    raise AssertionError(kinds)


def test_every_kind_of_odd_verdict_has_its_words() -> None:
    """Given the kinds, then log, metrics and page have the same ones."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if "`reconsume_odd_verdicts_total`" in line)
    assert set(ODD_KINDS) == set(MEANING) == set(metrics.ODD_KINDS)
    assert {kind for kind in ODD_KINDS if f"`{kind}`" not in line} == set()
    assert {row.odd.strip("`") for row in ROWS} - {""} <= set(ODD_KINDS)


def test_the_example_of_https_is_a_good_configuration(tmp_path: Path) -> None:
    (text,) = re.findall(r"<!-- example: https -->\n+```yaml\n(.+?)```", PAGE, re.DOTALL)
    (tmp_path / "reconsume.yaml").write_text(text, encoding="utf-8")
    deliver = load(tmp_path / "reconsume.yaml", environ={}).deliver
    assert set(files_of(deliver)) == {CA, CERTIFICATE, KEY, TOKEN, SECRETS}


def test_the_example_of_rules_is_a_good_configuration_for_people_and_policies(tmp_path: Path) -> None:
    (text,) = re.findall(r"<!-- example: rules -->\n+```yaml\n(.+?)```", PAGE, re.DOTALL)
    base = "group: billing\ntopics: [orders, invoices]\nkafka: {bootstrap.servers: x}\ndeliver: {url: 'http://127.0.0.1:1'}\n"
    (tmp_path / "reconsume.yaml").write_text(base + text, encoding="utf-8")
    policy = build_policy(load(tmp_path / "reconsume.yaml", environ={}), "pod")
    assert policy.terms_of("invoices", "http-410").dead_letter
    assert not policy.terms_of("orders", "http-410").dead_letter
    assert policy.terms_of("orders", "http-409").max_reconsume_times == 4


def test_the_example_of_topics_is_a_good_configuration_in_which_each_limit_binds(tmp_path: Path) -> None:
    (text,) = re.findall(r"<!-- example: topics -->\n+```yaml\n(.+?)```", PAGE, re.DOTALL)
    (tmp_path / "reconsume.yaml").write_text(
        f"group: billing\nkafka: {{bootstrap.servers: x}}\n{text}", encoding="utf-8"
    )
    settings = load(tmp_path / "reconsume.yaml", environ={})
    assert [topic.path for topic in settings.topics] == [None, "/invoices", "/mail?kind=news"]
    assert without_effect(settings) == []


def test_every_cause_of_a_handshake_that_fails_is_told() -> None:
    causes = {*DISTRUST.values(), UNTRUSTED, REFUSED, "tls-handshake"}
    assert set(re.findall(r"`(tls-[\w-]+)`", PAGE)) == causes
