"""`reset` on a running group: back and forth, by command and by call, with what waits and what has died from before."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from reconsume.topics.events import decode_event
from reconsume.topics.position_ranges import BY_RESET
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import SECONDS, with_policy

COUNT = 40
LONG_WAIT = {"retry": {"ladder": ["5s"], "max_reconsume_times": 1}}
Call = Callable[..., Result]


class Repaired:
    """A handler that fails what begins with `bad`, until it is repaired."""

    def __init__(self) -> None:
        self.is_well = threading.Event()

    def __call__(self, request: Request) -> Behaviour:
        return FAIL if (request.value or b"").startswith(b"bad") and not self.is_well.is_set() else OK


@pytest.fixture
def command(tmp_path: Path) -> Call:
    """`command(group, "reset", …)`: the command line with the configuration of the group's sidecars."""
    return lambda group, *words: for_group(tmp_path, group, *words)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def cycles(deliveries: tuple[Delivery, ...]) -> Counter[tuple[str, bytes]]:
    """How often each value was delivered in each cycle, as the request says it."""
    found = Counter[tuple[str, bytes]]()
    for one in deliveries:
        headers = {name.lower(): value for name, value in one.headers}
        found[headers.get("reconsume-cycle", "0"), one.value or b""] += 1
    return found


def all_took(service: Service, count: int) -> bool:
    return len({one.id for one in service.ledger.deliveries() if one.means == "took"}) >= count


def test_back_delivers_all_of_it_again_and_what_was_from_before_is_superseded(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    """Given a dead letter, a retry that waits and 38 successes, when the handler is repaired and the position moved
    back, then each record is delivered once in cycle 1, no retry of cycle 0 is, and no redrive takes the dead letter.
    """
    group, handler = with_policy(new_group()), Repaired()
    service = start_service(handler)
    pods = [start_sidecar(group, service.url, pod, LONG_WAIT) for pod in ("pod-0", "pod-1")]
    died, waits = b"bad:died", b"bad:waits"
    produce(group.bootstrap, group.main, [Out(died, partition=0)])
    until(lambda: dump(group.bootstrap, group.dlq), SECONDS, "it died")
    rest = [Out(waits, partition=0), *(Out(b"%d" % number, partition=number % 2) for number in range(COUNT - 2))]
    produce(group.bootstrap, group.main, rest)
    until(lambda: all_took(service, COUNT - 2), SECONDS, "all others are done")
    level = group.names.level(5_000, group.main)
    until(lambda: len(dump(group.bootstrap, level)) == 2, SECONDS, "one waits, where the other one has waited")
    handler.is_well.set()
    began = time.monotonic()
    done = command(group, "reset", "--topic", group.main, "--to", "earliest", "--why", "a bug", "--yes")
    assert done.exit_code == 0, done.stderr
    assert [row["state"] for row in rows(done)] == ["done", "done"]
    assert time.monotonic() - began < SECONDS
    until(lambda: all_took(service, COUNT), SECONDS, "all is delivered again")
    await_quiet(group, SECONDS)
    found = cycles(service.ledger.deliveries())
    assert {value: count for (cycle, value), count in found.items() if cycle == "1"} == dict.fromkeys(
        [died, waits, *(b"%d" % number for number in range(COUNT - 2))], 1
    )
    assert (found["0", died], found["0", waits]) == (2, 1), "what waited was not delivered"
    events = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    assert [getattr(event, "state", None) for event in events if getattr(event, "reason", "") == BY_RESET] == ["COMMIT"]
    (letter,) = rows(command(group, "dlq", "list", "--all", "-o", "jsonl"))
    assert letter["state"] == "superseded"
    assert command(group, "dlq", "redrive", "--yes").exit_code == 0
    assert dump(group.bootstrap, group.names.ready) == []
    assert rows(command(group, "retries", "list", "-o", "jsonl")) == []
    audited = command(group, "audit", "-o", "jsonl")
    assert audited.exit_code == 0, audited.stdout
    assert all(pod.running for pod in pods)


def test_forth_skips_what_nobody_needs_and_exports_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call, tmp_path: Path
) -> None:
    """Given records that are held back, when the position is moved to the end, then none of them is delivered, and the
    file has each of them once."""
    group = with_policy(new_group())
    service = start_service(lambda _request: OK)
    pod = start_sidecar(group, service.url)
    held = command(group, "hold", "--topic", group.main, "--for", "1h", "--why", "nobody needs them", "--yes")
    assert held.exit_code == 0, held.stderr
    produce(group.bootstrap, group.main, [Out(b"old:%d" % number, partition=number % 2) for number in range(COUNT)])
    file = tmp_path / "skipped.jsonl"
    done = command(group, "reset", "--topic", group.main, "--to", "latest", "--export", str(file), "--yes")
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((line["partition"], line["offset"]) for line in lines) == [
        (partition, offset) for partition in (0, 1) for offset in range(COUNT // 2)
    ]
    assert sum(row["skipped_at_most"] for row in rows(done)) == COUNT
    (hold,) = rows(command(group, "holds"))
    assert command(group, "release", hold["id"]).exit_code == 0
    produce(group.bootstrap, group.main, [Out(b"new", partition=0)])
    until(lambda: service.ledger.deliveries(), SECONDS, "what is new is delivered")
    assert [one.value for one in service.ledger.deliveries()] == [b"new"]
    assert command(group, "audit").exit_code == 0
    assert pod.running


def test_a_call_of_the_api_moves_a_position_too(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(lambda _request: OK)
    pod = start_sidecar(group, service.url)
    produce(group.bootstrap, group.main, [Out(b"%d" % number, partition=0) for number in range(10)])
    until(lambda: all_took(service, 10), SECONDS, "all is delivered")
    written = pod.request("POST", "/v1/reset", body={"topic": group.main, "partition": 0, "to": "4", "why": "a bug"})
    assert written.status == 202, written.json

    def is_over() -> bool:
        return bool(pod.request("GET", f"/v1/reset/{written.json['reset']}").json["over"])

    until(is_over, SECONDS, "its owner has moved it")
    assert all(row["undelivered_for"] == 0 for row in pod.status()["partitions"]), "no alert for an hour"
    until(lambda: len(service.ledger.deliveries()) == 16, SECONDS, "the last six come again")
    again = [value for (cycle, value), _ in cycles(service.ledger.deliveries()).items() if cycle == "1"]
    assert sorted(again) == [b"%d" % number for number in range(4, 10)]
