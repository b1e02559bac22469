"""Why a record failed, on a real broker: from the service's answer to copy, dead letter, event, log and command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.ledger import Ledger
from tests.support.rings import inner
from tests.support.service.behaviours import Answer, by_name
from tests.support.service.envelopes import Said
from tests.support.service.puller import PULL, Puller
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import SidecarProcess


def problem(body: bytes, kind: str = "application/problem+json") -> Answer:
    return Answer(400, (("Content-Type", kind),), body)


HOSTILE = b'{"title": "x\\n2026 ERROR forged\\u001b[2J\\u202e", "detail": "<script>alert(1)</script>"}'
UNKEPT = "the {} body is not kept (deliver.failure_text)"
CASES = {
    "problem": (problem(b'{"title": "Bad sku", "detail": "no sku 7"}'), "http-400", "Bad sku: no sku 7"),
    "hostile": (problem(HOSTILE), "http-400", "x 2026 ERROR forged [2J : <script>alert(1)</script>"),
    "plain": (problem(b"not for us", "text/plain"), "http-400", UNKEPT.format("text/plain")),
    "array": (problem(b"[1, 2]"), "http-400", UNKEPT.format("application/problem+json")),
    "huge": (problem(b'{"title": "' + b"x" * 400_000 + b'"}'), "http-400", UNKEPT.format("application/problem+json")),
}
MODES: dict[str, Config] = {
    "bare": {"deliver": {"outage_failures": None}},
    "envelope": {"deliver": {"envelope": True, "outage_failures": None}},
    "batch": {"deliver": {"batch": {"max_size": 4}, "concurrency": 4, "outage_failures": None}},
}


class Seen(NamedTuple):
    """What there is of one dead letter: its reason, the text in its events, its line in the log."""

    reason: str
    texts: list[str | None]
    line: str


def dead_letters(group: GroupTopics) -> dict[str, str]:
    """The reason of each dead letter, by the name in its value."""
    rows = dump(group.bootstrap, group.dlq)
    return {(row.value or b"").decode(): (dict(row.headers)[wire.RETRY_REASON] or b"").decode() for row in rows}


def seen(group: GroupTopics, sidecar: SidecarProcess, ids: dict[str, str]) -> dict[str, Seen]:
    sidecar.until(lambda: len(dead_letters(group)) == len(ids), 60, "all are dead letters")
    events = [json.loads(row.value or b"") for row in dump(group.bootstrap, group.names.events)]
    sidecar.stop()
    lines = [line for line in sidecar.log().splitlines() if "dead-letter" in line]
    return {
        name: Seen(
            reason,
            [event.get("text") for event in events if event["id"] == ids[name]],
            next((line for line in lines if ids[name] in line), ""),
        )
        for name, reason in dead_letters(group).items()
    }


@pytest.mark.parametrize("mode", inner("batch", MODES))
def test_what_the_service_says_stands_everywhere_beside_the_class(
    mode: str, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given failing answers with a problem, a hostile one and none, when their records die, then each says why."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    service = start_service(by_name({name: (answer,) for name, (answer, _, _) in CASES.items()}))
    service.batch_script = lambda requests: Said(service.script(requests[0]))  # one answer for all of them
    sidecar = start_sidecar(group, service.url, overrides={"retry": {"max_reconsume_times": 1}, **MODES[mode]})
    ids = {}
    for name in CASES:  # one after the other, so that each is a batch of its own
        ((number, offset),) = produce(group.bootstrap, group.main, [Out(name.encode(), b"key")])
        ids[name] = f"{group.main}:{number}:{offset}"
        sidecar.until(lambda: len(dead_letters(group)) == len(ids), 60, f"{name} is a dead letter")
    found = seen(group, sidecar, ids)
    log = sidecar.log()
    for name, (_, kind, text) in CASES.items():
        assert found[name].reason == (f"{kind}: {text}" if text else kind), name
        assert found[name].texts == [text or None] * 2, "when it waited, and when it died"
        assert text in found[name].line, name
        assert kind in found[name].line, name
    assert "\n2026 ERROR forged" not in log
    assert log.replace("\n", "").isprintable()
    assert f"10 attempts failed: 10 of {group.main} http-400" in log


def test_no_metric_has_the_text_and_the_commands_show_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(new_group(1, (1_000,)), partitions=1)
    service = start_service(by_name({"told": (problem(b"no such <sku>\x1b[1m", "text/html"),)}))
    body: Config = {"deliver": {"failure_text": "body"}, "retry": {"max_reconsume_times": 1}}
    sidecar = start_sidecar(group, service.url, overrides=body)
    produce(group.bootstrap, group.main, [Out(b"told", b"key")])
    sidecar.until(lambda: dead_letters(group), 60, "it is a dead letter")
    assert 'reason="http-400"' in sidecar.metrics()
    assert "no such" not in sidecar.metrics()
    file = tmp_path / "reconsume.yaml"
    tree = {"group": group.group, "topics": [group.main], "kafka": {"bootstrap.servers": group.bootstrap}}
    file.write_text(
        json.dumps({**tree, "deliver": {"url": "http://127.0.0.1:1/"}, "retry": {"levels": ["1s"], "ladder": ["1s"]}})
    )
    (listed,) = map(json.loads, reconsume("dlq", "list", "-c", file, "-o", "jsonl").stdout.splitlines())
    assert (listed["reason"], listed["text"]) == ("http-400", "no such <sku> [1m")
    shown = json.loads(reconsume("dlq", "show", listed["id"], "-c", file, "-o", "jsonl").stdout.splitlines()[0])
    assert shown["reason_text"] == "http-400: no such <sku> [1m"
    assert [event["text"] for event in shown["journey"]] == ["no such <sku> [1m"] * 2


def test_the_reason_of_a_pulled_record_is_told_alike(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    group = create_group(new_group(1, (1_000,)), partitions=1)
    sidecar = start_sidecar(group, "", overrides=PULL)
    ((number, offset),) = produce(group.bootstrap, group.main, [Out(b"told", b"key")])
    puller = Puller(sidecar, ledger)
    (got,) = until(puller.receive, 30, "the record is received")
    assert puller.dead_letter(got, "no such sku: 7") == "ok"
    found = seen(group, sidecar, {"told": f"{group.main}:{number}:{offset}"})["told"]
    assert found.reason == "dead-letter-asked: no such sku: 7"
    assert found.texts == ["no such sku: 7"]
    assert "no such sku: 7" in found.line
