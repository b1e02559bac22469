"""docs/migrate.md: its configurations wait as it says, its commands run, and what it warns of is so."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome, Rejected
from reconsume.sidecar.delivery.verdict import VerdictRules, verdict_from_response
from reconsume.sidecar.settings import load
from reconsume.topics import retry_headers as wire
from reconsume.topics.durations import parse_duration
from reconsume.topics.render_headers import render_retry_headers
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.operations.migrate_docs import TEXT, Example, commands, examples
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, Out, create_topic, dump, produce
from tests.support.kubernetes.kubectl import APPLY, DEPLOYMENT, check, documents, run
from tests.support.service.behaviours import OK, Answer, Behaviour, Request
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.command_lines import parsed

EXAMPLES = examples()
TIMED = [example for example in EXAMPLES.values() if example.total]
NEED_MORE = {"doctor"}
"""Commands that judge a running service: they have tests of their own, here they need only be understood."""
TOOL = re.compile(
    r"kafka-consumer-groups\.sh --bootstrap-server localhost:9092 --reset-offsets --group \S+ "
    r"(--topic \S+ --to-current --dry-run --export > progress\.csv|--from-file progress\.csv --execute)"
)


def written(folder: Path, text: str, name: str = "reconsume.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_the_page_has_a_configuration_for_each_way_here() -> None:
    ways = ["trial", "spring", "spring-blocking", "rocketmq", "pulsar", "dapr"]
    assert list(EXAMPLES) == ways
    assert TEXT.count("```yaml") == len(ways)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=lambda example: example.name)
def test_a_configuration_is_a_good_one(tmp_path: Path, example: Example) -> None:
    file = written(tmp_path, example.text)
    settings = load(file, environ={})
    assert settings.group in ("billing", "billing-trial")
    checked = reconsume("config", "check", "-c", file)
    assert checked.exit_code == 0, checked.stderr


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("reconsume ")])
def test_a_command_is_one_that_the_program_takes(line: str) -> None:
    assert parsed(shlex.split(line)[1:])


@pytest.mark.parametrize("example", TIMED, ids=lambda example: example.name)
def test_a_failing_record_waits_as_long_and_ends_where_the_page_says(tmp_path: Path, example: Example) -> None:
    shown = reconsume("explain", "-o", "jsonl", "-c", written(tmp_path, example.text))
    assert shown.exit_code == 0, shown.stderr
    last = json.loads(shown.stdout.splitlines()[-1])
    assert (parse_duration(last["sum"]), last["topic"]) == (parse_duration(example.total), example.dlq)


def test_the_way_back_is_the_same_configuration_with_another_deliver(tmp_path: Path) -> None:
    assert "only `deliver` changes, to `{mode: relay}`." in TEXT
    forth = load(written(tmp_path, EXAMPLES["spring"].text), environ={})
    config = yaml.safe_load(EXAMPLES["spring"].text)
    config |= {"deliver": {"mode": "relay"}}
    back = load(written(tmp_path, yaml.safe_dump(config)), environ={})
    assert (back.delays, back.topic_names, back.deliver.mode) == (forth.delays, forth.topic_names, "relay")


@pytest.mark.parametrize(
    "change",
    [{"retry": {"understand": ["rocketmq"]}}, {"deliver": {"mode": "pull", "order": "partition"}}],
    ids=["understand", "pull"],
)
def test_order_is_refused_where_the_page_says_so(tmp_path: Path, change: dict[str, object]) -> None:
    config = yaml.safe_load(EXAMPLES["spring-blocking"].text) | change
    refused = reconsume("config", "check", "-c", written(tmp_path, yaml.safe_dump(config)))
    assert refused.exit_code == 78
    assert "deliver.order" in refused.stderr


def of_dapr(body: str) -> Outcome:
    return verdict_from_response(200, [(b"content-type", b"application/json")], body.encode(), VerdictRules(), 0)


def test_an_answer_to_dapr_is_done_here_unless_it_has_the_second_word() -> None:
    bodies = re.findall(r'`(\{"status": .*?\})`', TEXT)
    assert [type(of_dapr(body)) for body in bodies] == [type(COMMITTED), Failed, Rejected]


def test_a_copy_of_an_old_retry_topic_that_is_listed_no_more_is_a_bad_header() -> None:
    life = wire.RetryState("orders-retry-1000:0:7", "orders-retry-1000", times=2)
    copy = render_retry_headers(life, "billing", "billing-RETRY-5s")
    assert wire.parse_retry_headers(copy, ["orders", "orders-retry-1000"], 0) == life
    assert isinstance(wire.parse_retry_headers(copy, ["orders"], 0), wire.BadHeader)


# --- on a broker -----------------------------------------------------------------------------------------------------


def here(text: str, group: GroupTopics) -> str:
    """A text of the page under this test's names."""
    named = re.sub(r"\borders\b", group.main, re.sub(r"\bbilling\b", group.group, text))
    return named.replace("localhost:9092", group.bootstrap)


def test_every_command_does_what_the_page_says(
    new_group: FreshGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, each with the configuration that it names; what kubectl would apply is valid."""
    group = new_group()
    for topic in load(written(tmp_path, here(EXAMPLES["spring"].text, group)), environ={}).topic_names:
        create_topic(group.bootstrap, topic, 1)
    monkeypatch.chdir(tmp_path)
    written(tmp_path, DEPLOYMENT, "deploy.yaml")
    written(tmp_path, here(EXAMPLES["trial"].text, group), "trial.yaml")
    written(tmp_path, here(EXAMPLES["spring"].text, group))
    coordinated(group)
    given = commands()
    assert len(given) >= 20
    for line in given:
        follow(line, group)
    (deployment,) = documents(Path("deploy.yaml").read_text())
    assert [one["name"] for one in deployment["spec"]["template"]["spec"]["initContainers"]] == ["reconsume"]


def coordinated(group: GroupTopics) -> None:
    """Wait until the broker answers for groups: the first one that it hears of makes it create its own topic."""

    def answers() -> bool:
        try:
            progress_of(group.bootstrap, f"{group.group}-trial", TopicPartition(group.main, 0))
        except KafkaException:
            return False
        return True

    until(answers, 30, "the broker coordinates groups")


def made(words: list[str]) -> bool:
    """Whether the broker shows every topic that `topics apply` with these words has made: it may be behind itself."""
    options = [word for word in words[2:] if word != "--yes"]
    plan = reconsume("topics", "plan", "-o", "jsonl", *options).stdout.splitlines()
    return bool(plan) and all(json.loads(row)["action"] == "ok" for row in plan)


def follow(line: str, group: GroupTopics) -> None:
    """Do what a line says; where it talks to a cluster, what would be sent there is checked."""
    program, *words = shlex.split(here(line, group).removesuffix(APPLY))
    if program == "reconsume":
        shown = reconsume(*words, *(["--help"] if words[0] in NEED_MORE else []))
        assert shown.exit_code == 0, f"{line}: {shown.stderr}"
        if words[:2] == ["topics", "apply"]:
            until(lambda: made(words), 60, f"what the broker tells of its topics has come to all of them: {line}")
    elif program == "kafka-consumer-groups.sh":
        assert TOOL.fullmatch(line), line
    elif words[0] == "apply":
        for document in documents(Path(words[-1]).read_text()):
            check(document, "1.29")
    else:
        done = run(program, *words, *(["--help"] if words[0] == "scale" else []))
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if words[0] == "create":
            assert documents(done.stdout)[0]["data"].keys() == {"reconsume.yaml"}


def progress_of(bootstrap: str, group: str, place: TopicPartition, offset: int | None = None) -> int:
    """A group's committed offset; set to `offset` before, where one is given."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    if offset is not None:
        consumer.commit(offsets=[TopicPartition(place.topic, place.partition, offset)], asynchronous=False)
    (found,) = consumer.committed([place], timeout=SECONDS)
    consumer.close()
    return found.offset


def taken_over(request: Request) -> Behaviour:
    return Answer(500) if request.value == b"fails" else OK


def test_what_waits_in_springs_topics_goes_on_and_what_was_done_there_does_not_come_again(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    fresh = new_group()
    text = here(EXAMPLES["spring"].text, fresh)
    config, topics = yaml.safe_load(text), load(written(tmp_path, text), environ={}).topic_names
    group = create_group(replace(fresh, mains=topics, delays=(1_000, 5_000, 25_000)), partitions=1)
    old = group.mains[1]
    attempts = {b"done-1": 2, b"done-2": 2, b"waits": 3, b"fails": 4}
    outs = [Out(value, headers=(("retry_topic-attempts", number.to_bytes(4)),)) for value, number in attempts.items()]
    produce(group.bootstrap, old, outs)
    place = TopicPartition(old, 0)
    coordinated(group)
    spring = progress_of(group.bootstrap, f"{group.group}-retry-1000", place, 2)
    # What the page's two calls of Kafka's own tool do.
    assert progress_of(group.bootstrap, group.group, place, spring) == 2
    produce(group.bootstrap, group.main, [b"new"])
    service = start_service(taken_over)
    sidecar = start_sidecar(group, service.url, overrides={"topics": config["topics"], "retry": config["retry"]})
    dead = group.names.dlq(group.main)
    sidecar.until(lambda: len(service.ledger.taken()) == 2, 30, "what waited and what is new are taken")
    sidecar.until(lambda: [row.value for row in dump(group.bootstrap, dead)] == [b"fails"], 30, "the last retry failed")
    assert sidecar.stop().code == 0
    seen = {(delivery.value, delivery.times) for delivery in service.ledger.deliveries()}
    assert seen == {(b"waits", 2), (b"fails", 3), (b"new", 0)}
    assert {dict(one.headers)["reconsume-topic"] for one in service.ledger.deliveries()} == {group.mains[0]}
