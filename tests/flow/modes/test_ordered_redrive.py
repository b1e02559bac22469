"""A redrive of a group whose order survives long waits: a dead letter comes back behind what its key has by then."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

from reconsume.topics.names import Kind
from reconsume.topics.retry_headers import ORIGIN_MESSAGE_ID
from reconsume.topics.retry_order import RETRY_ORDER
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer, Behaviour, Request, verdict
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of

LADDER: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 60},
}


class Shop:
    """`unknown…` is refused until `mended` is set, and `stuck…` fails until `well` is."""

    def __init__(self) -> None:
        self.mended, self.well = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Behaviour:
        value = request.value or b""
        if value.startswith(b"unknown") and not self.mended.is_set():
            return verdict("dead-letter")
        return Answer(500 if value.startswith(b"stuck") and not self.well.is_set() else 200)


def test_a_redriven_letter_comes_behind_everything_that_its_key_had_by_then(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given two dead letters, and a head of their key that waits with one behind it, when the letters are redriven,
    then they are delivered after these in their own order, and before what comes later."""
    group = create_group(replace(new_group(), delays=(), queued=True), 1, also=[Kind.POLICY])
    shop = Shop()
    service = start_service(shop)
    sidecar = start_sidecar(group, service.url, overrides=LADDER)

    def put(*values: bytes) -> list[str]:
        places = produce(group.bootstrap, group.main, [Out(value, b"a") for value in values])
        return [f"{group.main}:{number}:{offset}" for number, offset in places]

    letters = put(b"unknown-1", b"unknown-2")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 2, 30, "both are dead")
    shop.mended.set()
    before = put(b"stuck", b"behind")
    sidecar.until(lambda: len(service.ledger.of(before[0])) >= 2, 30, "the head is retried")
    file = tmp_path / "redrive.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, LADDER)), encoding="utf-8")
    ended = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert (ended.exit_code, group.queues[0] in ended.stderr) == (0, True), ended.stderr
    (after,) = put(b"after")
    sidecar.until(lambda: sum(len(service.ledger.of(ident)) for ident in before) >= 4, 30, "the head goes on failing")
    assert all(len(service.ledger.of(ident)) == 1 for ident in letters), "nothing of the key overtakes its head"
    shop.well.set()
    sidecar.until(lambda: bool(service.ledger.of(after)), 40, "the last of the key is delivered")
    await_quiet(group, 30)
    assert sidecar.stop().code == 0
    line = [before[0], before[1], *letters, after]
    taken = [service.ledger.of(ident)[-1].received for ident in line]
    assert taken == sorted(taken), dict(zip(line, taken, strict=True))
    assert dump(group.bootstrap, group.names.ready) == []
    copies = [dict(row.headers) for row in dump(group.bootstrap, group.queues[0])]
    redriven = [copy for copy in copies if copy["RETRY_REDRIVES"] == b"1"]
    assert [copy[ORIGIN_MESSAGE_ID] for copy in redriven] == [ident.encode() for ident in letters]
    orders = [copy[RETRY_ORDER] or b"" for copy in redriven]
    end = int(before[1].rpartition(":")[2]) + 1
    assert [order.partition(b".")[0] for order in orders] == [b"%d" % end] * 2
    assert violations(group, tmp_path, LADDER) == []
