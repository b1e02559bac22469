"""`docs/interface.md` on a real broker: its examples are what a running sidecar sends and answers, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.ledger import Ledger
from tests.support.service import stub_service as stub
from tests.support.service.puller import PULL, Puller
from tests.support.service.stub_service import StubService
from tests.support.sidecar.config import Config

PAGE = (Path(__file__).parents[3] / "docs" / "interface.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- interface: (\w+) -->\n\n```\w+\n(.*?)\n```\n", PAGE, re.S))
STAMP = 1_767_225_600_000
RECORDS = [
    Out(b'{"id": 17}', b"customer-7", (("TAGS", b"TagA"), ("source", None)), 0, STAMP),
    Out(None, None, (), 0, STAMP),
]
Named = Callable[[str], str]


def table_fields(heading: str) -> set[str]:
    """The names in the first column of the tables below a heading of the page."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| [^|]* \|$", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def as_on_the_page(group: GroupTopics) -> Named:
    """A function that puts the page's names for those of a test: group, topic and handles."""

    def renamed(text: str) -> str:
        text = text.replace(group.main, "orders").replace(group.group, "billing")
        return re.sub(r"h1-[A-Za-z0-9_-]{20,}", "h1-…", text)

    return renamed


def expiry(entry: dict[str, Any]) -> datetime:
    """When a lease ends; it is taken out of the entry."""
    return datetime.fromisoformat(entry.pop("expires_at"))


def sent(new_group: FreshGroup, start_sidecar: StartSidecar, overrides: Config, records: list[Out]) -> tuple[str, str]:
    """Head and body of the first request of a sidecar with these records, with the page's names."""
    group = create_group(new_group(), partitions=1)
    produce(group.bootstrap, group.main, records)
    with StubService([stub.ok]) as service:
        sidecar = start_sidecar(group, service.url, overrides=overrides)
        until(lambda: service.requests, 30, "a request has come")
        assert sidecar.stop().code == 0
    head, _, body = as_on_the_page(group)(service.requests[0].decode()).partition("\r\n\r\n")
    return re.sub(r"Host: .*", "Host: 127.0.0.1:8080", head.replace("\r\n", "\n")).replace(
        "POST / ", "POST /events "
    ), body


def test_a_request_with_one_record_is_the_pages(new_group: FreshGroup, start_sidecar: StartSidecar) -> None:
    head, body = sent(new_group, start_sidecar, {"deliver": {"timeout": "30s"}}, RECORDS[:1])
    assert "\n".join([*head.splitlines(), "", body]) == BLOCKS["request"]
    known = re.findall(r"[\w-]+", PAGE.partition("## An envelope")[0])
    suffixes = {name.removeprefix("Reconsume") for name in re.findall(r"(?m)^Reconsume-\w+", head)}
    assert suffixes <= {f"-{word.removeprefix('Reconsume').lstrip('-')}" for word in known}


@pytest.mark.parametrize(
    ("block", "deliver"),
    [("envelope", {"envelope": True}), ("batch", {"batch": {"max_size": 32, "max_wait": "1s"}})],
)
def test_the_json_of_an_envelope_and_of_a_batch_is_the_pages(
    new_group: FreshGroup, start_sidecar: StartSidecar, block: str, deliver: dict[str, Any]
) -> None:
    records = RECORDS if block == "batch" else RECORDS[:1]
    head, body = sent(new_group, start_sidecar, {"deliver": deliver}, records)
    assert json.loads(body) == json.loads(BLOCKS[block])
    assert "\nContent-Type: application/vnd.reconsume+json\n" in f"{head}\n"
    names = set(re.findall(r"(?m)^(Reconsume-[\w-]+|Idempotency-Key)", head))
    assert (names == {"Reconsume-Group", "Reconsume-Timeout"}) == (block == "batch"), names
    assert {"group", "headers", *json.loads(body)["records"][0]} <= table_fields("An envelope")


def test_the_calls_of_pull_mode_take_and_return_what_the_page_says(
    new_group: FreshGroup, start_sidecar: StartSidecar, folder: Path
) -> None:
    group = create_group(new_group(), partitions=1)
    named = as_on_the_page(group)
    ledger = Ledger(folder / "interface-ledger.jsonl")
    sidecar = start_sidecar(group, "", overrides=PULL)
    puller = Puller(sidecar, ledger)
    produce(group.bootstrap, group.main, RECORDS[:1])
    asked = json.loads(BLOCKS["receive"])
    received: dict[str, Any] = {}

    def one_came() -> bool:
        received.update(puller.call("receive", asked).json)
        return bool(received["records"])

    until(one_came, 30, "the record is received")
    shown = json.loads(named(json.dumps(received)))
    page = json.loads(BLOCKS["received"])
    ends = expiry(shown["records"][0])
    assert abs(ends - datetime.now(UTC) - timedelta(seconds=30)) < timedelta(seconds=10)
    assert expiry(page["records"][0]) == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    assert shown == page
    handle = received["records"][0]["handle"]
    changed = puller.call("change-invisible", {"handles": [handle], "invisible": "1m"}).json
    (entry,) = json.loads(named(json.dumps(changed, ensure_ascii=False)))["handles"]
    (example,) = json.loads(BLOCKS["changed"])["handles"]
    assert expiry(entry) > ends
    assert expiry(example) == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert entry == example
    later = {**json.loads(BLOCKS["later"]), "handles": [changed["handles"][0]["new_handle"]]}
    ended = puller.call("reconsume-later", later)
    assert json.loads(named(json.dumps(ended.json, ensure_ascii=False))) == json.loads(BLOCKS["entries"])
    assert puller.call("ack", {"handles": [handle]}).status == 409
    for call, cell in re.findall(r"^\| `POST /v1/([\w-]+)` \| ([^|]+) \|", PAGE, re.M):
        detail = puller.call(call, {"no-such-field": 1}).json["detail"]
        assert detail.endswith(f"it knows {cell.replace('`', '').strip()}."), f"{call} takes other fields: {detail}"
    assert puller.call("receive", {"x": 1}).json["detail"].endswith("it knows max, invisible, wait.")
    assert sidecar.stop().code == 0
    ledger.close()
