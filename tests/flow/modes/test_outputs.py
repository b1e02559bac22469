"""Records that a service has written with its verdict: they appear when its record is done, each once."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import Result

from reconsume.topics.outputs import RETRY_OUTPUT_BY, RETRY_OUTPUT_OF
from reconsume.topics.retry_headers import RETRY_REASON
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.proof.audited import audit
from tests.support.proof.ledger import FAILED
from tests.support.rings import inner
from tests.support.service.behaviours import Answer, Behaviour, Request
from tests.support.sidecar.policy import CALM
from tests.support.sidecar.scene import SOON, Proxied, Scene

JSON = (("Content-Type", "application/json"),)
LIMIT = 200_000


def output_topic(group: GroupTopics, suffix: str = "invoices", **config: str) -> str:
    """A topic for outputs, with three partitions."""
    name = f"{group.group}-{suffix}"
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1, config=config)])[name].result(30)
    return name


def saying(verdict: str, produce: object, **more: Any) -> Answer:
    """An answer with outputs."""
    body = json.dumps({"verdict": verdict, "produce": produce}).encode()
    return Answer(200, JSON, body, means="" if verdict == "commit" else FAILED, **more)


def origins(rows: list[Row]) -> Counter[bytes | None]:
    return Counter(dict(row.headers)[RETRY_OUTPUT_OF] for row in rows)


def test_outputs_appear_once_with_their_record_and_those_that_may_not_be_written_hurt_no_other(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(new_group())
    out = output_topic(group, **{"max.message.bytes": str(LIMIT)})
    big = {"topic": out, "key": "big", "value_base64": b64encode(Random(5).randbytes(LIMIT + 1)).decode()}
    refused: dict[str, object] = {
        "foreign": [{"topic": "payments"}],
        "ours": [{"topic": group.dlq}],
        "broken": [{"topic": out, "value_base64": "!"}],
        "missing": [{"topic": f"{group.group}-nowhere"}],
        "far": [{"topic": out, "partition": 3}],
        "large": [{"topic": out, "value": "kept out"}, big],
    }

    def script(request: Request) -> Behaviour:
        name = (request.value or b"").partition(b":")[0].decode()
        if name in refused:
            return saying("commit", refused[name])
        if name == "failing" and request.times == 0:
            return saying("retry", [{"topic": out, "key": "failing", "json": {"failed": 1}}])
        if name == "refused":
            return saying("dead-letter", [{"topic": out, "key": "dead", "value": None}])
        text = (request.value or b"").decode()
        keyed, placed = {"topic": out, "key": text, "value": text}, {"topic": out, "partition": 2, "value": text}
        return saying("commit", [keyed, placed])

    service = start_service(script)
    deliver = {**CALM["deliver"], "outputs": [f"{group.group}-*"], "max_answer": "1MiB"}
    config = {"deliver": deliver, "retry": {"max_reconsume_times": 1}}
    sidecar = start_sidecar(group, service.url, overrides=config)
    names = ("good", "failing", "refused", *refused)
    produce(group.bootstrap, group.main, [f"{name}:{number}".encode() for number in range(20) for name in names])
    sidecar.until(lambda: len(service.ledger.taken()) >= 40, 60, "the good and the failing are done")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 20 * 7, 60, "all others are dead")
    rows = dump(group.bootstrap, out)
    assert max(origins(rows).values()) == 1
    keys = Counter((row.key or b"").partition(b":")[0] for row in rows)
    assert keys == {b"good": 20, b"failing": 20 + 20, b"dead": 20, b"": 20 + 20}
    assert {row.partition for row in rows if row.key is None} == {2}
    letters = dump(group.bootstrap, group.dlq)
    reasons = Counter((dict(row.headers)[RETRY_REASON] or b"").partition(b":")[0] for row in letters)
    assert reasons == {b"output-refused": 120, b"dead-letter-asked": 20}
    sound = audit(group, tmp_path, config)
    assert (audited(sound), f"and {len(rows)} outputs" in sound.stderr) == ([], True)
    plant(group, out, rows)
    torn = f"{group.main}:0:987654"
    twice = (dict(rows[0].headers)[RETRY_OUTPUT_OF] or b"").partition(b"/")[0].decode()
    planted = audit(group, tmp_path, config)
    assert audited(planted) == sorted([("output-torn", torn), ("output-twice", twice)])
    assert audited(audit(group, tmp_path, config, "--skip-outputs")) == []


def audited(shown: Result) -> list[tuple[str, str]]:
    """What an audit finds, by kind and id."""
    return sorted((row["kind"], row["id"]) for row in map(json.loads, shown.stdout.splitlines()))


def plant(group: GroupTopics, out: str, rows: list[Row]) -> None:
    """Write an output again, one of a record that is not done, and what is none of the group's outputs."""
    again = Out(b"again", None, rows[0].headers)
    undone = (RETRY_OUTPUT_OF, f"{group.main}:0:987654/0/0#0".encode())
    by, others = ((RETRY_OUTPUT_BY, name.encode()) for name in (group.group, f"{group.group}-other"))
    strange = [
        Out(b"", None, headers) for headers in ((undone, others), (rows[0].headers[0],), (by,), (undone, by, by))
    ]
    produce(group.bootstrap, out, [again, Out(b"not done", None, (undone, by)), *strange])


CUTS = {
    "answered, nothing sent": (Api.ADD_PARTITIONS_TO_TXN, Moment.ARRIVED, Fate.DROP),
    "records produced": (Api.PRODUCE, Moment.DONE, Fate.PASS),
    "offsets in the transaction": (Api.TXN_OFFSET_COMMIT, Moment.ANSWERED, Fate.DROP),
    "commit not sent": (Api.END_TXN, Moment.ARRIVED, Fate.DROP),
    "commit sent": (Api.END_TXN, Moment.FORWARDED, Fate.PASS),
    "commit not acknowledged": (Api.END_TXN, Moment.ANSWERED, Fate.DROP),
}


@pytest.mark.parametrize("cut", inner("commit sent", CUTS))
def test_a_reader_sees_each_output_exactly_once_though_records_are_delivered_again(
    cleared: Proxied, tmp_path: Path, cut: str
) -> None:
    api, moment, fate = CUTS[cut]
    with ExitStack() as stack:
        scene = Scene(cleared, tmp_path, stack, {"outputs": ["*-invoices"]})
        out = output_topic(scene.group)

        def script(request: Request) -> Behaviour:
            text = (request.value or b"").decode()
            luck = zlib.crc32(request.id.encode()) % 100
            if luck < 5 or (luck < 40 and request.times == 0):
                return Answer(500, after=0.005)
            return saying("commit", [{"topic": out, "key": request.id, "value": text}], after=0.005)

        scene.script = script
        for number, lane in enumerate(("main", "retry", "main")):
            rule = scene.proxy.add(Rule(api, scene.client(lane), moment, scene.kill, nth=3, fate=fate))
            if number == 0:
                scene.begin()
            assert rule.fired.wait(SOON)
            scene.succeed()
        report = scene.verify()
        rows = dump(scene.group.bootstrap, out)
        assert Counter(row.key for row in rows) == {ident.encode(): 1 for ident in scene.service.ledger.taken()}
        assert len(rows) == report.committed
        assert len(dump(scene.group.bootstrap, out, read_committed=False)) >= len(rows)
        sound = audit(scene.group, tmp_path, {"deliver": {"outputs": ["*-invoices"]}})
        assert (audited(sound), f"and {len(rows)} outputs" in sound.stderr) == ([], True)
