"""`reset` on a real broker: its plan, its request, what it waits for, and what it refuses. A test plays the owner."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.reset import reset_routes
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.doctor.checks.resets import resets
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.position_reset import PositionStore
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings import Settings, load
from reconsume.topics.names import Kind
from reconsume.topics.ownership import key_of
from reconsume.topics.policy_record import QueryTold, SubscriptionRecord, render_record
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from reconsume.topics.reset_record import ResetRequest, ResetTarget, render_reset
from reconsume.topics.reset_record import reset_key as request_key
from tests.support.beside import repeated
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.reset_notes import note_resets, topic_id
from tests.support.kafka.topic_io import Out, add_partitions, create_topic, produce
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

COUNT = 20


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """A group with 20 records in each of two partitions, of which ten, and one behind a gap, are done."""
    made = create_group(fresh_group(kafka.bootstrap), also=[Kind.POLICY])
    outs = [
        Out(b"value %d" % number, b"key", (("h", b"\xff"),), partition, 1_000 * (number + 1))
        for partition in (0, 1)
        for number in range(COUNT)
    ]
    produce(made.bootstrap, made.main, outs)
    for partition in (0, 1):
        commit(made, partition, Progress(10, frozenset({12})))
    return made


def commit(group: GroupTopics, partition: int, progress: Progress) -> None:
    text = encode(Partition(group.main, partition), progress)
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    try:
        consumer.commit(offsets=[TopicPartition(group.main, partition, progress.next, text)], asynchronous=False)
    finally:
        consumer.close()


def requests(group: GroupTopics) -> dict[str, ResetRequest]:
    return ControlLog(Cluster({"bootstrap.servers": group.bootstrap}), group.names).read().resets


@contextmanager
def owner(group: GroupTopics, carry_out: Callable[[str, ResetRequest], None]) -> Iterator[None]:
    """Carry out, on a thread, each request that comes meanwhile."""
    known = set(requests(group))

    def follow() -> None:
        for ident, request in requests(group).items():
            if ident not in known:
                known.add(ident)
                carry_out(ident, request)

    with repeated(follow, 0.05):
        yield


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_dry_run_says_where_each_position_goes_and_writes_nothing(group: GroupTopics, tmp_path: Path) -> None:
    """Given 10 of 20 records done, and the 13th: to the sixth means 8 again, and to the end means 9 skipped."""
    back = for_group(tmp_path, group, "reset", "--topic", group.main, "--to", "1970-01-01T00:00:06Z", "--dry-run")
    assert back.exit_code == 0, back.stderr
    assert rows(back.stdout) == [
        {
            "partition": number,
            "direction": "backwards",
            "position": 10,
            "target": 5,
            "again_at_most": 8,
            "skipped_at_most": 0,
            "left_of_earlier": 0,
            "log": "0–20",
        }
        for number in (0, 1)
    ]
    forth = for_group(
        tmp_path, group, "reset", "--topic", group.main, "--to", "latest", "--dry-run", "--partition", "1"
    )
    assert [(row["direction"], row["target"], row["skipped_at_most"]) for row in rows(forth.stdout)] == [
        ("forwards", 20, 9)
    ]
    assert requests(group) == {}


def test_a_reset_is_done_when_the_note_of_each_partition_names_it(group: GroupTopics, tmp_path: Path) -> None:
    def carry_out(ident: str, request: ResetRequest) -> None:
        assert (request.topic, request.id, request.who, request.why) == (group.main, topic_id(group), "ann", "a bug")
        for part in request.targets:
            moved = ResetRange(part.target, 13, 1, 1)
            note_resets(group, part.partition, PartitionResets(request.id, 1, (moved,), (ident,)))

    words = ("reset", "--topic", group.main, "--to", "earliest", "--who", "ann", "--why", "a bug", "--yes")
    with owner(group, carry_out):
        done = for_group(tmp_path, group, *words)
    assert done.exit_code == 0, done.stderr
    ((ident, _),) = requests(group).items()
    assert f"{ident} is written" in done.stderr
    assert [(row["state"], row["again_at_most"]) for row in rows(done.stdout)] == [("done", 13), ("done", 13)]
    again = for_group(tmp_path, group, "reset", "--follow", ident)
    assert (again.exit_code, rows(again.stdout)) == (0, rows(done.stdout)), "it may be asked again"


def test_what_was_skipped_is_exported_byte_for_byte_and_may_be_again(group: GroupTopics, tmp_path: Path) -> None:
    def carry_out(ident: str, request: ResetRequest) -> None:
        note_resets(group, 0, PartitionResets(request.id, 0, (), (ident,), ((10, 12), (13, 20))))

    file = tmp_path / "skipped.jsonl"
    words = ("reset", "--topic", group.main, "--partition", "0", "--to", "latest", "--export", str(file))
    with owner(group, carry_out):
        done = for_group(tmp_path, group, *words, "--yes")
    assert done.exit_code == 0, done.stderr
    lines = rows(first := file.read_text())
    assert [line["offset"] for line in lines] == [10, 11, *range(13, 20)]
    assert base64.b64decode(lines[0]["value_base64"]) == b"value 10"
    assert lines[0]["headers"] == [["h", base64.b64encode(b"\xff").decode()]]
    assert file.stat().st_mode & 0o077 == 0, "values are for this user alone"
    (ident,) = requests(group)
    file.unlink()
    assert for_group(tmp_path, group, "reset", "--follow", ident, "--export", str(file)).exit_code == 0
    assert file.read_text() == first
    assert [path.name for path in tmp_path.iterdir() if "skipped" in path.name] == ["skipped.jsonl"]


def test_another_reset_that_came_first_fails_this_one(group: GroupTopics, tmp_path: Path) -> None:
    """Given an owner that carries out another reset of the same basis, then nothing of this one happens."""

    def carry_out(_ident: str, request: ResetRequest) -> None:
        note_resets(group, 0, PartitionResets(request.id, 1, (ResetRange(0, 13, 1, 1),), ("other",)))

    with owner(group, carry_out):
        failed = for_group(tmp_path, group, "reset", "--topic", group.main, "--partition", "0", "--to", "3", "--yes")
    assert failed.exit_code == 1, failed.stderr
    assert "another reset was carried out first" in failed.stderr


def test_the_next_reset_is_based_on_the_one_before(group: GroupTopics, tmp_path: Path) -> None:
    note_resets(group, 0, PartitionResets(topic_id(group), 1, (ResetRange(0, 18, 1, 1),), ("first",)))

    def carry_out(ident: str, request: ResetRequest) -> None:
        assert [part.based_on for part in request.targets] == ["first"]
        note_resets(group, 0, PartitionResets(request.id, 2, (ResetRange(3, 18, 2, 2),), ("first", ident)))

    words = ("reset", "--topic", group.main, "--partition", "0", "--to", "3")
    with owner(group, carry_out):
        done = for_group(tmp_path, group, *words, "--yes")
    assert done.exit_code == 0, done.stderr
    assert "at most 8 records of an earlier reset are not delivered yet" in done.stderr


def test_a_target_within_an_earlier_range_is_one_backwards(group: GroupTopics, tmp_path: Path) -> None:
    """Given that the position is within a range that ends at 18, then what is behind it there was begun before."""
    note_resets(group, 0, PartitionResets(topic_id(group), 1, (ResetRange(0, 18, 1, 1),), ("first",)))
    shown = for_group(tmp_path, group, "reset", "--topic", group.main, "--partition", "0", "--to", "15", "--dry-run")
    assert [(row["direction"], row["again_at_most"], row["left_of_earlier"]) for row in rows(shown.stdout)] == [
        ("backwards", 3, 8)
    ]


def test_a_topic_that_was_recreated_has_had_no_reset(group: GroupTopics, tmp_path: Path) -> None:
    note_resets(group, 0, PartitionResets("00000000", 1, (ResetRange(0, 18, 1, 1),), ("first",)))
    shown = for_group(tmp_path, group, "reset", "--topic", group.main, "--partition", "0", "--to", "3", "--dry-run")
    assert [row["left_of_earlier"] for row in rows(shown.stdout)] == [0]


def test_a_position_that_is_there_already_is_not_moved(group: GroupTopics, tmp_path: Path) -> None:
    commit(group, 0, Progress(20))
    there = for_group(tmp_path, group, "reset", "--topic", group.main, "--partition", "0", "--to", "latest", "--yes")
    assert there.exit_code == 0
    assert "each position is there already" in there.stderr
    assert requests(group) == {}


@pytest.fixture
def client(group: GroupTopics, tmp_path: Path) -> Iterator[Client]:
    """The API of a sidecar of the group, called by an operator."""
    text = f"group: {group.group}\ntopics: [{group.main}]\nkafka: {{bootstrap.servers: '{group.bootstrap}'}}\n"
    (file := tmp_path / "api.yaml").write_text(f"{text}deliver: {{url: 'http://127.0.0.1:1/'}}\n")
    (token := tmp_path / "token").write_text("ann: a-secret-long-enough\n")
    settings = load(file, (), {})
    access = Access(None, LOOPBACK_NAMES, operators=token)
    with (
        serving(
            build_app(
                Operation(),
                lambda: b"",
                access,
                calls=reset_routes(settings, lambda: PositionStore(Cluster(settings.kafka), settings.names)),
            )
        ) as port,
        Client(port) as client,
    ):
        yield client


def call(client: Client, method: str, path: str, body: object = None) -> Answer:
    text = "" if body is None else json.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: Bearer a-secret-long-enough"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(text)}", "", text]
    client.send("\r\n".join(lines).encode())
    return client.answer(method)


def test_a_call_writes_a_reset_and_tells_what_became_of_it(group: GroupTopics, client: Client) -> None:
    wish = {"topic": group.main, "partition": 0, "to": "earliest", "why": "a bug"}
    planned = call(client, "POST", "/v1/reset", {**wish, "dry_run": True})
    assert (planned.status, planned.json["reset"], requests(group)) == (200, None, {})
    assert [row["again_at_most"] for row in planned.json["partitions"]] == [13]
    written = call(client, "POST", "/v1/reset", wish)
    ((ident, request),) = requests(group).items()
    assert (written.status, written.json["reset"], request.who) == (202, ident, "api:ann")
    waits = call(client, "GET", f"/v1/reset/{ident}").json
    assert ([row["state"] for row in waits["partitions"]], waits["over"]) == (["waiting"], False)
    note_resets(group, 0, PartitionResets(request.id, 1, (ResetRange(0, 13, 1, 1),), (ident,)))
    done = call(client, "GET", f"/v1/reset/{ident}").json
    assert ([row["state"] for row in done["partitions"]], done["over"], done["why"]) == (["done"], True, "a bug")


def test_a_call_that_cannot_be_meant_is_refused(group: GroupTopics, client: Client) -> None:
    good = {"topic": group.main, "partition": 0, "to": "earliest"}
    for change in ({"topic": "odrers"}, {"to": "soon"}, {"to": None}, {"partition": -1}, {"dry_run": 1}, {"since": 1}):
        assert call(client, "POST", "/v1/reset", good | change).status == 400, change
    assert call(client, "POST", "/v1/reset", good | {"partition": 7}).status == 409
    assert call(client, "GET", "/v1/reset/nobody").status == 404
    assert requests(group) == {}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--to", "3"), "an offset means one partition: say which one"),
        (("--to", "21", "--partition", "0"), "it begins at 0 and ends at 20"),
        (("--to", "earliest", "--partition", "2"), "has no partition 2: it has 2 partitions"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    words: tuple[str, ...], sentence: str, group: GroupTopics, tmp_path: Path
) -> None:
    refused = for_group(tmp_path, group, "reset", "--topic", group.main, *words, "--yes")
    assert refused.exit_code == 1, refused.stderr
    assert sentence in " ".join(refused.stderr.split())
    assert requests(group) == {}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"deliver": {"mode": "relay"}}, "in relay mode the service reads the main topics itself"),
        ({"deliver": {"mode": "spark"}}, "its checkpoint says where it begins"),
        (
            {"deliver": {"url": "http://127.0.0.1:1/", "broadcast": True}, "start": "latest", "retry": {}},
            "a broadcast keeps no position",
        ),
    ],
)
def test_a_mode_that_keeps_no_position_is_refused(more: dict[str, object], sentence: str, tmp_path: Path) -> None:
    nowhere = fresh_group("127.0.0.1:1")
    refused = for_group(tmp_path, nowhere, "reset", "--topic", nowhere.main, "--to", "earliest", "--yes", **more)
    assert refused.exit_code == 1, refused.stderr
    assert sentence in " ".join(refused.stderr.split())


def test_a_living_query_of_spark_keeps_its_own_position(group: GroupTopics, tmp_path: Path) -> None:
    told = QueryTold("orders-job", "app-1", "host", 1, "n1", gated=True)
    beat = SubscriptionRecord({group.main: "*"}, int(time.time() * 1000), query=told)
    ControlLog(Cluster({"bootstrap.servers": group.bootstrap}), group.names).write({key_of(told): render_record(beat)})
    refused = for_group(tmp_path, group, "reset", "--topic", group.main, "--to", "earliest", "--yes")
    assert refused.exit_code == 1
    assert "the Spark query orders-job reads the group" in " ".join(refused.stderr.split())


def test_sixteen_ranges_are_the_most(group: GroupTopics, tmp_path: Path) -> None:
    """Given 16 ranges that no later one covers, one more is refused; one that covers others is not."""
    now = int(time.time() * 1000)
    ranges = tuple(ResetRange(0, 18 - number, number + 1, now) for number in range(16))
    note_resets(group, 0, PartitionResets(topic_id(group), 16, ranges, ("r16",)))
    words = ("reset", "--topic", group.main, "--partition", "0", "--dry-run", "--to")
    refused = for_group(tmp_path, group, *words, "5")
    assert refused.exit_code == 1
    assert "16 ranges of earlier resets" in " ".join(refused.stderr.split())
    assert for_group(tmp_path, group, *words, "0").exit_code == 0


def test_a_policy_topic_of_one_partition_has_no_room_for_notes(kafka: Broker, tmp_path: Path) -> None:
    made = create_group(fresh_group(kafka.bootstrap))
    produce(made.bootstrap, made.main, [Out(b"x", partition=0)])
    missing = for_group(tmp_path, made, "reset", "--topic", made.main, "--to", "earliest", "--dry-run")
    assert missing.exit_code == 1
    assert "topics apply" in missing.stderr
    create_topic(made.bootstrap, made.names.policy, 1, {"cleanup.policy": "compact"})
    narrow = for_group(tmp_path, made, "reset", "--topic", made.main, "--to", "earliest", "--dry-run")
    assert narrow.exit_code == 1
    assert "has one partition, and a reset needs two" in " ".join(narrow.stderr.split())
    add_partitions(made.bootstrap, made.names.policy, 2)
    until(
        lambda: (
            for_group(tmp_path, made, "reset", "--topic", made.main, "--to", "earliest", "--dry-run").exit_code == 0
        ),
        10,
        "the wider topic is enough",
    )


# --- doctor ----------------------------------------------------------------------------------------------------------


def found(group: GroupTopics, at: int) -> list[tuple[str, str]]:
    """What `doctor` finds about resets at a time: status and sentence."""
    kafka = {"bootstrap.servers": group.bootstrap}
    settings = load_group(group)
    state = ControlLog(Cluster(kafka), group.names).read()
    return [(str(one.status), one.finding) for one in resets(Cluster(kafka), state, settings, at)]


def load_group(group: GroupTopics) -> Settings:
    sets = [f"group={group.group}", f"topics=[{group.main}]", f"kafka={{bootstrap.servers: '{group.bootstrap}'}}"]
    return load(None, [*sets, "deliver.url=http://127.0.0.1:1/"], {})


def test_doctor_names_a_reset_that_waits_and_one_that_has_no_effect_any_more(group: GroupTopics) -> None:
    now = wall()
    assert found(group, now) == [("ok", "no reset waits")]
    part = ResetTarget(0, 4)
    request = ResetRequest(group.main, topic_id(group), (part,), "ann", "", now, "2h")
    ControlLog(Cluster({"bootstrap.servers": group.bootstrap}), group.names).write(
        {request_key("r1"): render_reset(request)}
    )
    ((status, waits),) = found(group, wall())
    assert (status, f"reset r1 of {group.main} to 2h, by ann, waits for the owners of 1 partition" in waits) == (
        "ok",
        True,
    )
    assert [status for status, _ in found(group, now + 120_000)] == ["warn"]
    assert found(group, now + 2 * 86_400_000) == [("ok", "no reset waits")], "it is forgotten a day later"
    note_resets(group, 0, PartitionResets(request.id, 1, (ResetRange(4, 13, 1, now),), ("r1",)))
    assert found(group, now + 120_000) == [
        ("ok", f"{group.main}[0]: at most 3 records of a reset to be delivered again")
    ], "of the range up to 13, all below 10 is done"


def test_doctor_names_a_position_that_another_tool_has_moved(group: GroupTopics) -> None:
    """Given a group that has failed records before, when `kafka-consumer-groups.sh` moves its position."""
    moved = TopicPartition(group.main, 1, 3)
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    consumer.commit(offsets=[moved], asynchronous=False)
    consumer.close()
    assert found(group, wall()) == [("ok", "no reset waits")], "a new group may begin where a tool has put it"
    produce(group.bootstrap, group.names.events, [Out(b"an event")])
    ((status, text),) = found(group, wall())
    assert (status, f"another tool has moved the position of {group.main}[1] (position-moved)" in text) == (
        "warn",
        True,
    )
