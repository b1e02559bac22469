"""Least rights on a broker that checks them: the exact set does the work, and each right that is missing is named."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from typer.testing import Result

from reconsume.sidecar.doctor.checks.kafka import reach, role_of
from reconsume.sidecar.doctor.checks.kafka import rights as check_rights
from reconsume.sidecar.doctor.findings import Status
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.source import Source
from reconsume.spark.consumer.transactions import Line, WriteError, write_partitions
from reconsume.topics.acls import GroupShape, Operation, Permission, Resource, User, permissions_of
from reconsume.topics.names import Kind
from reconsume.topics.outputs import RETRY_OUTPUT_BY, RETRY_OUTPUT_OF
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka
from tests.support.kafka.topic_io import Out, Row, create_topic, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import Ledger
from tests.support.service.behaviours import FAIL, OK, Script, by_name
from tests.support.service.puller import Puller
from tests.support.service.service import Service
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, Posted, post, post_of, waiting

DELAYS = (1_000, 2_000)
ALL = (Kind.VIEW, Kind.POLICY)
SECONDS = 20.0
SCRIPT: Script = by_name({"good": (OK,), "flaky": (FAIL, OK), "poison": (FAIL,)})


@pytest.fixture
def group(guarded: GuardedKafka) -> GroupTopics:
    return create_group(fresh_group(guarded.bootstrap, delays=DELAYS), also=ALL)


def rights_group(group: GroupTopics, **changed: Any) -> GroupShape:
    return GroupShape(group.names, group.mains, group.delays, **changed)


def config_file(folder: Path, group: GroupTopics, kafka: dict[str, str], **more: object) -> Path:
    tree = {
        "group": group.group,
        "topics": list(group.mains),
        "kafka": kafka,
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": ["1s", "2s"], "ladder": ["1s", "2s"]},
        "api": {"listen": f"unix:{folder}/api.sock"},  # the doctor calls whoever listens on the usual port
        **more,
    }
    file = folder / "reconsume.yaml"
    file.write_text(json.dumps(tree), encoding="utf-8")
    return file


def view_row(group: GroupTopics) -> Out:
    """A record of the view, as Spark writes it."""
    ident, at = f"{group.main}:0:0", time.time_ns() // 1_000_000
    source = {"topic": group.main, "partition": 0, "offset": 0, "timestamp": at}
    times = {"due": at + 1_000, "at": at, "first_failed_at": at, "last_failed_at": at, "updated_at": at}
    state = {"state": "WAITING_RETRY", "times": 1, "redrives": 0, "level": "1s", "reason": "http-500", "retries": 1}
    value = {"v": 1, "group": group.group, "id": ident, "instance": "pod-0", **source, **times, **state}
    return Out(json.dumps(value).encode(), ident.encode())


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- the exact set does the work -------------------------------------------------------------------------------------


def test_the_sidecar_does_the_main_job_with_its_least_rights(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    guarded.allow("sidecar", permissions_of(User.SIDECAR, rights_group(group)))
    with Service(tmp_path / "ledger", SCRIPT) as service:
        overrides = {"kafka": guarded.login("sidecar")}
        with SidecarProcess(group, service.url, tmp_path, overrides=overrides) as sidecar:
            sidecar.wait_ready()
            values = [b"good:%d" % number for number in range(30)] + [b"flaky:1", b"flaky:2", b"poison:1"]
            produce(guarded.bootstrap, group.main, values)
            sidecar.until(lambda: len(service.ledger.taken()) == 32, SECONDS, "all but the poison are taken")
            sidecar.until(lambda: len(dump(guarded.bootstrap, group.dlq)) == 1, SECONDS, "the poison is dead")
            assert sidecar.status()["last_error"] is None
            assert sidecar.stop().code == 0
        assert "authoriz" not in sidecar.log().lower()
        report = check(collect(group, service.ledger))
    assert (report.committed, report.dead_lettered, report.waiting) == (32, 1, 0)
    told = [row.key for row in dump(guarded.bootstrap, group.names.policy)]
    assert told
    assert all(key is not None and key.startswith((b"instance/", b"settings/")) for key in told)


def test_a_spark_query_writes_its_transactions_with_its_least_rights_and_says_which_is_missing(
    guarded: GuardedKafka, group: GroupTopics
) -> None:
    """Another client for each try: what Kafka refuses, a client may keep in mind."""
    rights = permissions_of(User.SERVICE, rights_group(group, mode="spark"))
    guarded.allow("service", rights)
    private = group.names.spark_group("ship")
    copies = [(topic, b"k", b"v", []) for topic in (*group.levels, group.dlq, group.names.events)]
    lines = [(group.main, 0, -1, None, 1, None), (group.main, 0, 0, 1, None, msgspec.msgpack.encode(copies))]

    def write() -> None:
        batch = pa.RecordBatch.from_pylist([Line(*line)._asdict() for line in lines])
        list(write_partitions(guarded.login("service"), private, iter([batch])))

    of_query = [right for right in rights if right.prefixed]
    assert {right.resource for right in of_query} == {Resource.GROUP, Resource.TRANSACTIONAL_ID}
    for right in (*of_query, Permission(Resource.TOPIC, group.names.events, Operation.WRITE)):
        guarded.forbid("service", right)
        with pytest.raises(WriteError, match="authorization failed"):
            write()
        assert dump(guarded.bootstrap, group.names.events) == []
        guarded.allow("service", [right])
    write()
    assert len(dump(guarded.bootstrap, group.names.events)) == 1


def test_a_relay_and_its_service_do_their_work_with_their_least_rights(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    relay = rights_group(group, mode="relay")
    guarded.allow("sidecar", permissions_of(User.SIDECAR, relay))
    guarded.allow("service", permissions_of(User.SERVICE, relay))
    produce(guarded.bootstrap, group.main, [b"once more"])
    own = {"group.id": group.group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    service = Consumer({**guarded.login("service"), **own})
    service.subscribe([group.main, group.names.ready])
    read: list[Row] = []

    def came(topic: str) -> bool:
        for message in service.consume(10, 0.1):
            assert message.error() is None, message.error()
            assert message.topic() == topic
            read.append(
                Row(message.partition() or 0, message.offset() or 0, message.timestamp()[1], None, message.value(), ())
            )
        return bool(read)

    overrides = {**RELAY, "kafka": guarded.login("sidecar")}
    with SidecarProcess(group, "", tmp_path, overrides=overrides) as sidecar:
        sidecar.wait_ready()
        until(lambda: came(group.main), SECONDS, "the service reads its main topic")
        assert post(sidecar, post_of(group.main, read.pop(), delay="1s")).status == 201
        sidecar.until(lambda: came(group.names.ready), SECONDS, "the retry is due on the ready topic")
        service.commit(asynchronous=False)
        assert sidecar.status()["last_error"] is None
        sidecar.wait_log("topic-limits-hidden")
        assert sidecar.stop().code == 0
    service.close()
    assert read[0].value == b"once more"
    assert "authoriz" not in sidecar.log().lower()
    assert sidecar.log().count("topic-limits-hidden") == 1


def test_a_topic_that_may_not_be_written_fails_its_own_posts_and_no_other(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    """Kafka adds all partitions to a transaction, or none: a good post beside one for that topic is refused with it."""
    short, long = (group.names.level(delay, group.main) for delay in DELAYS)
    lost = Permission(Resource.TOPIC, short, Operation.WRITE)
    relay = rights_group(group, mode="relay")
    rights = [right for right in permissions_of(User.SIDECAR, relay) if right != lost]
    guarded.allow("relay", rights)
    row = Row(0, 7, time.time_ns() // 1_000_000, b"k", b"v", ())
    overrides = {**RELAY, "kafka": guarded.login("relay")}
    with SidecarProcess(group, "", tmp_path, overrides=overrides) as sidecar, ThreadPoolExecutor(20) as callers:
        sidecar.wait_ready()

        def post_at(number: int) -> Posted:
            delay = "1s" if number % 2 else "2s"
            return post(sidecar, post_of(group.main, row._replace(offset=number), delay=delay))

        for _ in range(5):
            answers = list(callers.map(post_at, range(40)))
            good, bad = answers[::2], answers[1::2]
            assert {answer.status for answer in good} == {201}, good
            assert {answer.status for answer in bad} == {503}
            assert all(short in answer.json["detail"] for answer in bad), "the topic is named"
        guarded.allow("relay", [lost])
        sidecar.until(lambda: post_at(1).status == 201, SECONDS, "the right is noticed")
        assert sidecar.stop().code == 0
    assert len(dump(guarded.bootstrap, long)) == 100
    assert len(dump(guarded.bootstrap, short)) == 1


def test_the_ui_reads_and_changes_nothing(guarded: GuardedKafka, group: GroupTopics, tmp_path: Path) -> None:
    guarded.allow("ui", permissions_of(User.UI, rights_group(group)))
    produce(guarded.bootstrap, group.names.view, [view_row(group)])
    file = config_file(tmp_path, group, guarded.login("ui"))
    for words in (
        ["policy", "show"],
        ["retries", "list"],
        ["retries", "stats"],
        ["dlq", "list"],
        ["find", "customer-7"],
    ):
        shown = reconsume("-c", file, *words)
        assert shown.exit_code == 0, shown.stderr
    changed = reconsume("-c", file, "policy", "set", "max_reconsume_times=3", "--yes")
    assert changed.exit_code == 1
    assert dump(guarded.bootstrap, group.names.policy) == []


def test_a_search_reads_each_topic_by_one_right_and_names_the_topics_that_it_may_not_read(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    rights = permissions_of(User.UI, rights_group(group))
    searched = [group.main, *group.levels, group.names.ready]
    for topic in searched:
        produce(guarded.bootstrap, topic, [b"customer-7"])
    file = config_file(tmp_path, group, guarded.login("ui"))

    def found() -> Result:
        return reconsume("-c", file, "find", "customer-7")

    guarded.allow("ui", rights)
    until(lambda: (shown := found()).exit_code == 0 and len(rows(shown)) == len(searched), SECONDS, "all is searched")
    for topic in searched:
        reading = Permission(Resource.TOPIC, topic, Operation.READ)
        guarded.forbid("ui", reading)
        guarded.allow("ui", [Permission(Resource.TOPIC, topic, Operation.DESCRIBE)])
        unread = f"incomplete: {topic} is not checked: a right is missing: READ on topic {topic}"
        until(lambda: unread in found().stderr, SECONDS, "the right is missed")  # noqa: B023 - runs now
        shown = found()
        assert (shown.exit_code, len(rows(shown))) == (3, len(searched) - 1)
        guarded.allow("ui", [reading])


def test_the_view_of_events_needs_no_right_on_rows_and_says_what_it_may_not_read(
    guarded: GuardedKafka, group: GroupTopics
) -> None:
    rights = permissions_of(User.SIDECAR, rights_group(group, view=True, source="events"))
    reading = Permission(Resource.TOPIC, group.names.events, Operation.READ)
    assert not any(right.name == group.names.view for right in rights)
    guarded.allow("sidecar", [right for right in rights if right != reading])
    produce(guarded.bootstrap, group.names.events, [b"unread"])  # of an empty topic all is known without a fetch
    thread = ViewFollower(guarded.login("sidecar"), group.names, None, "t", 0.5, source=Source.EVENTS)
    thread.start()
    try:
        until(lambda: "the view cannot be read" in thread.status.problem, SECONDS, "it says so")
        assert thread.status.as_of is None
        guarded.allow("sidecar", [reading])
        until(lambda: thread.status.as_of is not None, SECONDS, "the right is noticed")
        assert thread.status.problem == ""
    finally:
        thread.stop()
        thread.join(SECONDS)


def test_the_admin_creates_topics_sets_the_policy_and_redrives_with_its_least_rights(
    guarded: GuardedKafka, tmp_path: Path
) -> None:
    group = fresh_group(guarded.bootstrap, delays=DELAYS)
    create_group(group, leave_out=[*group.levels, group.names.ready, group.dlq, group.names.events])
    guarded.allow("admin", permissions_of(User.ADMIN, rights_group(group)))
    file = config_file(tmp_path, group, guarded.login("admin"))

    def done(words: str) -> None:
        result = reconsume("-c", file, *words.split())
        assert result.exit_code == 0, (words, result.stderr)

    done("topics apply --yes")
    done("topics check")
    set_policy = ["-c", str(file), "policy", "set", "max_reconsume_times=3", "--yes"]
    # A topic that was just created may not have a leader yet.
    until(lambda: reconsume(*set_policy).exit_code == 0, SECONDS, "the policy is set")
    produce(guarded.bootstrap, group.dlq, [waiting(group, 0, 1_000, RETRY_TOPIC=group.dlq.encode())])
    done("dlq redrive --since 1h --yes")
    assert [row.value for row in dump(guarded.bootstrap, group.names.ready)] == [b"v"]
    done(f"dlq purge --until 0s --confirm {group.group}")
    assert dump(guarded.bootstrap, group.dlq) == []
    cluster, shape = Cluster(guarded.login("admin")), rights_group(group)
    (found,) = check_rights(cluster, shape, role_of(cluster, shape, User.ADMIN), "")
    assert (found.status, f"WRITE on transactional-id {group.names.redrive_group}" in found.finding) == (
        Status.OK,
        True,
    )
    audited = reconsume("-c", file, "audit")
    assert "authoriz" not in audited.stderr, audited.stderr


def test_the_admin_takes_over_foreign_dead_letters_with_its_least_rights_and_says_which_is_missing(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    foreign = f"{group.main}-dlt"
    create_topic(guarded.bootstrap, foreign)
    produce(guarded.bootstrap, group.main, [Out(b"v", None, (), 0)])
    origin = (("topic", group.main.encode()), ("partition", b"0"), ("offset", b"0"))
    named = tuple((f"__connect.errors.{name}", value) for name, value in origin)
    produce(guarded.bootstrap, foreign, [Out(b"v", None, named)])
    rights = permissions_of(User.ADMIN, rights_group(group, imported=(foreign,)))
    reading = Permission(Resource.TOPIC, foreign, Operation.READ)
    guarded.allow("admin", [right for right in rights if right != reading])
    file = config_file(tmp_path, group, guarded.login("admin"))
    words = ("-c", file, "dlq", "import", "--from", "connect", "--topic", foreign, "--yes")
    denied = reconsume(*words)
    assert (denied.exit_code, foreign in denied.stderr) == (1, True), denied.stderr
    guarded.allow("admin", [reading])
    taken = reconsume(*words)
    assert (taken.exit_code, "1 imported" in taken.stderr) == (0, True), (taken.stdout, taken.stderr)
    assert [row.value for row in dump(guarded.bootstrap, group.dlq)] == [b"v"]


def test_the_admin_audits_outputs_with_its_least_rights_and_says_where_they_are_missing(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    out = f"{group.group}-invoices"
    create_topic(guarded.bootstrap, out)
    of = ((RETRY_OUTPUT_OF, f"{group.main}:0:0/0/0#0".encode()), (RETRY_OUTPUT_BY, group.group.encode()))
    produce(guarded.bootstrap, out, [Out(b"", None, of)])
    rights = permissions_of(User.ADMIN, rights_group(group, outputs=(out,)))
    reading = Permission(Resource.TOPIC, out, Operation.READ)
    assert reading in rights
    guarded.allow("admin", [right for right in rights if right != reading])
    named = config_file(
        tmp_path, group, guarded.login("admin"), deliver={"url": "http://127.0.0.1:1/", "outputs": [out]}
    )

    def said() -> str:
        shown = reconsume("-c", named, "audit", "-o", "jsonl")
        return " ".join(row["text"] for row in rows(shown)) + shown.stderr

    until(lambda: f"{out} of deliver.outputs is not there, or may not be read" in said(), SECONDS, "it is not seen")
    guarded.allow("admin", [Permission(Resource.TOPIC, out, Operation.DESCRIBE)])
    until(lambda: f"a right is missing: READ on topic {out}" in said(), SECONDS, "it may not be read")
    guarded.allow("admin", [reading])
    until(lambda: "and 1 output" in said(), SECONDS, "it is read")


# --- each right that is missing is named -----------------------------------------------------------------------------


def test_each_right_that_is_taken_away_is_named_alone(guarded: GuardedKafka, group: GroupTopics) -> None:
    """A right on a topic that is its only one takes the sight of the topic along, and all that is needed there."""
    shape = rights_group(group, view=True)
    rights = permissions_of(User.SIDECAR, shape)
    guarded.allow("sidecar", rights)
    cluster = Cluster(guarded.login("sidecar"))
    until(lambda: not bad(cluster, shape), SECONDS, "the rights have reached the broker")
    for right in rights:
        guarded.forbid("sidecar", right)
        blind = {other for other in rights if (other.resource, other.name) == (right.resource, right.name)}
        texts = bad(cluster, shape)
        assert f"missing: {right}" in texts
        assert texts <= {f"missing: {other}" for other in blind}
        guarded.allow("sidecar", [right])


def bad(cluster: Cluster, shape: GroupShape) -> set[str]:
    found = check_rights(cluster, shape, role_of(cluster, shape, User.SIDECAR), "")
    return {one.finding for one in found if one.status is Status.FAIL}


def test_doctor_fails_and_names_what_is_missing_with_the_command_that_gives_it(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    rights = permissions_of(User.SIDECAR, rights_group(group))
    lost = Permission(Resource.TOPIC, group.dlq, Operation.WRITE)
    guarded.allow("sidecar", [right for right in rights if right != lost])
    with Service(tmp_path / "ledger") as service:
        file = config_file(tmp_path, group, guarded.login("sidecar"), deliver={"url": service.url})
        shown = reconsume("-c", file, "doctor")
        found = {row["check"]: row for row in rows(shown)}
        assert shown.exit_code == 1
        assert {name for name, row in found.items() if row["status"] == "fail"} == {"rights"}
        assert found["rights"]["finding"] == f"missing: WRITE on topic {group.dlq}"
        assert found["rights"]["repair"] == f"reconsume acls apply --role sidecar --principal User:sidecar -c {file}"
        config_file(tmp_path, group, {"bootstrap.servers": guarded.bootstrap}, deliver={"url": service.url})
        mended = reconsume(*found["rights"]["repair"].split()[1:], "--yes")
        assert mended.exit_code == 0, mended.stderr
        assert [row["name"] for row in rows(mended) if row["result"] == "created"] == [group.dlq]
        file = config_file(tmp_path, group, guarded.login("sidecar"), deliver={"url": service.url})
        again = reconsume("-c", file, "doctor")
        assert again.exit_code == 0, again.stdout


def test_a_glob_of_outputs_gives_rights_by_name_on_what_exists_and_says_that_later_topics_need_another_apply(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    """Nothing on a topic of a group, this one or another, although the glob matches it too."""
    names = [f"{group.group}-invoices", f"{group.group}-mail"]
    for name in (*names, f"{group.group}-ORDERED-x", f"{group.group}-other-DLQ"):
        create_topic(guarded.bootstrap, name)
    deliver = {"url": "http://127.0.0.1:1/", "outputs": [f"{group.group}-*"]}
    file = config_file(tmp_path, group, {"bootstrap.servers": guarded.bootstrap}, deliver=deliver)

    def outputs(command: str) -> tuple[list[str], str]:
        shown = reconsume("-c", file, "acls", command, "--role", "sidecar", *(["--yes"] if command == "apply" else []))
        own = {right.name for right in permissions_of(User.SIDECAR, rights_group(group))}
        topics = [row for row in rows(shown) if row["resource"] == "topic" and row["name"] not in own]
        assert all((row["operation"], row["pattern"]) == ("WRITE", "literal") for row in topics), topics
        return sorted(row["name"] for row in topics), shown.stderr

    named, said = outputs("plan")
    assert named == names
    assert "for those that are created later, run `reconsume acls apply" in said
    outputs("apply")
    create_topic(guarded.bootstrap, late := f"{group.group}-late")
    assert outputs("plan")[0] == sorted([*names, late])


# --- acls plan, apply, export ----------------------------------------------------------------------------------------


def test_apply_creates_what_plan_then_finds_there(guarded: GuardedKafka, group: GroupTopics, tmp_path: Path) -> None:
    file = config_file(tmp_path, group, {"bootstrap.servers": guarded.bootstrap})
    spark = ("--set", "view.source=spark")
    planned = rows(reconsume("-c", file, "acls", "plan", "--role", "spark", *spark))
    assert {(row["operation"], row["name"], row["action"]) for row in planned} == {
        ("READ", group.names.events, "create"),
        ("WRITE", group.names.view, "create"),
        ("READ", group.names.view_group, "create"),
    }
    assert {row["principal"] for row in planned} == {f"User:{group.group}-spark"}
    asked = reconsume("-c", file, "acls", "apply", "--role", "spark", *spark)
    assert (asked.exit_code, asked.stdout) == (2, "")
    would = rows(reconsume("-c", file, "acls", "apply", "--role", "spark", *spark, "--dry-run"))
    assert {row["result"] for row in would} == {"would be created"}
    done = reconsume("-c", file, "acls", "apply", "--role", "spark", *spark, "--yes")
    assert {row["result"] for row in rows(done)} == {"created"}

    def seen() -> bool:
        return {row["action"] for row in rows(reconsume("-c", file, "acls", "plan", "--role", "spark", *spark))} == {
            "ok"
        }

    until(seen, SECONDS, "the rules have reached the broker")


def test_the_plan_keeps_the_rights_on_levels_of_a_topic_that_left_the_configuration(
    guarded: GuardedKafka, tmp_path: Path
) -> None:
    group = create_group(replace(fresh_group(guarded.bootstrap, 2, DELAYS), template="{topic}-{group}"), also=ALL)
    kept, removed = group.mains
    smaller = replace(group, mains=(kept,))
    root = {"bootstrap.servers": guarded.bootstrap}
    file = config_file(tmp_path, smaller, root, topic_prefix="{topic}-{group}")
    planned = rows(reconsume("-c", file, "acls", "plan", "--role", "sidecar"))
    on = {row["name"]: row["operation"] for row in planned if row["operation"] == "READ"}
    assert {name for name in on if removed in name} == {group.names.level(delay, removed) for delay in DELAYS}


@pytest.mark.parametrize("more", [{}, {"view": {"source": "spark"}, "ui": True}], ids=["default", "spark and ui"])
def test_the_plan_of_topics_counts_the_rights_that_the_plan_of_rights_lists(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path, more: dict[str, object]
) -> None:
    file = config_file(tmp_path, group, {"bootstrap.servers": guarded.bootstrap}, **more)
    told = reconsume("-c", file, "topics", "plan").stderr
    needed = rows(reconsume("-c", file, "acls", "plan"))
    assert f" {len(needed)} rights;" in told
    exported = reconsume("-c", file, "acls", "export").stdout
    assert exported.count("--operation ") == len(needed)


def test_a_user_who_may_not_read_the_rules_gets_the_list_and_is_told_which_right_comparing_takes(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    file = config_file(tmp_path, group, guarded.login("nobody"))
    shown = reconsume("-c", file, "acls", "plan", "--role", "sidecar")
    assert shown.exit_code == 0, shown.stderr
    wanted = permissions_of(User.SIDECAR, rights_group(group))
    assert [(row["operation"], row["name"], row["action"]) for row in rows(shown)] == [
        (str(right.operation), right.name, "unknown") for right in wanted
    ]
    assert "needs DESCRIBE" in shown.stderr
    assert "`reconsume acls export" in shown.stderr
    applied = reconsume("-c", file, "acls", "apply", "--role", "sidecar", "--yes")
    assert (applied.exit_code, applied.stdout) == (1, "")
    assert "needs DESCRIBE" in applied.stderr


# --- logins ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sasl.password": "wrong"}, "SASL: the login is refused"),
        ({"sasl.mechanism": "SCRAM-SHA-512"}, "SASL: the broker does not know this mechanism"),
        ({"security.protocol": "PLAINTEXT"}, "expects another security.protocol"),
        ({"security.protocol": "SASL_SSL"}, "TLS"),
    ],
)
def test_a_login_that_fails_is_told_by_its_cause(guarded: GuardedKafka, changed: dict[str, str], says: str) -> None:
    (found,) = reach({**guarded.login("sidecar"), "bootstrap.servers": guarded.direct, **changed})
    assert found.status is Status.FAIL
    assert says in found.finding
    assert found.mend


def test_a_login_where_none_is_asked_for_is_told_by_its_cause(guarded: GuardedKafka) -> None:
    (found,) = reach({**guarded.login("sidecar"), "bootstrap.servers": guarded.bootstrap})
    assert "SASL: the broker asks for no login on this port" in found.finding


def test_the_api_holds_releases_and_settles_with_the_sidecars_least_rights(
    guarded: GuardedKafka, tmp_path: Path
) -> None:
    group = replace(fresh_group(guarded.bootstrap, delays=()), queued=True)
    create_group(group, partitions=1, also=ALL)
    guarded.allow("sidecar", permissions_of(User.SIDECAR, rights_group(group, ordered=True)))
    overrides: Config = {
        "kafka": guarded.login("sidecar"),
        "deliver": {"order": "key", "outage_failures": None},
        "retry": {"ordered_ladder": ["5m"]},
    }
    with (
        closing(Ledger(tmp_path / "calls")) as calls,
        Service(tmp_path / "ledger", SCRIPT) as service,
        SidecarProcess(group, service.url, tmp_path, overrides=overrides) as sidecar,
    ):
        sidecar.wait_ready()
        api, ident = Puller(sidecar, calls), f"{group.main}:0:0"
        produce(guarded.bootstrap, group.main, [Out(b"poison:1", b"a"), Out(b"good:1", b"a")])
        waits = {"id": ident, "how": "dead-letter", "why": "never right"}
        sidecar.until(lambda: any(row.key == ident.encode() for row in dump(guarded.bootstrap, group.names.events)),
                      SECONDS, "it waits")  # fmt: skip
        made = api.call("holds", {"key": "a", "for": "1h", "why": "the account is checked"})
        assert made.status == 201, made.body
        sidecar.until(lambda: len(sidecar.status()["holds"]) == 1, SECONDS, "the hold is in force")
        settled = api.call("settle", waits)
        assert settled.status == 200, settled.body
        assert (settled.json["done"], settled.json["how"]) == (True, "dead-letter")
        assert len(dump(guarded.bootstrap, group.dlq)) == 1
        assert service.ledger.taken() == set()
        assert sidecar.request("DELETE", f"/v1/holds/{made.json['id']}").status == 204
        sidecar.until(lambda: f"{group.main}:0:1" in service.ledger.taken(), SECONDS, "the next of the key goes")
        assert sidecar.status()["last_error"] is None
        assert sidecar.stop().code == 0
    assert "authoriz" not in sidecar.log().lower()
