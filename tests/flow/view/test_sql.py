"""`view sql` in a group without Spark: what waits and what died, with their values, joined as an operator would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.service.behaviours import OK, Answer, Request, verdict
from tests.support.sidecar.cli import for_group

SOON = 60.0


def script(request: Request) -> Answer:
    """Letters fail until they are dead and redriven, retries wait for an hour, all else is done."""
    kind = json.loads(request.value or b"{}").get("kind")
    if kind == "letter" and not int(request.headers["reconsume-redrives"]):
        return Answer(400, (("Content-Type", "application/json"),), b'{"detail": "no such sku"}')
    return verdict("retry; delay=1h") if kind == "retry" else OK


def record(kind: str, customer: str) -> Out:
    value = json.dumps({"kind": kind, "customer": customer}).encode()
    return Out(value, customer.encode(), (("origin", b"web"), ("raw", b"\xff\x00"), ("origin", b"app"), ("none", None)))


class Story(NamedTuple):
    """A group with dead letters, one of them redriven, and records that wait."""

    group: GroupTopics
    folder: Path

    def sql(self, query: str) -> list[dict[str, Any]]:
        done = for_group(self.folder, self.group, "view", "sql", query, "-o", "jsonl")
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def story(
    new_group: FreshGroup,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path_factory: pytest.TempPathFactory,
) -> Story:
    group, folder = create_group(new_group()), tmp_path_factory.mktemp("sql")
    sidecar = start_sidecar(group, start_service(script).url, "pod-0")
    produce(group.bootstrap, group.main, [record("letter", "ann"), record("letter", "bob"), record("letter", "ann")])
    produce(group.bootstrap, group.main, [record("retry", "eve"), record("done", "joe")])
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 3, SOON, "three are dead letters")
    story = Story(group, folder)
    sidecar.until(lambda: story.sql("SELECT id FROM waiting"), SOON, "one waits")
    (first, *_) = story.sql("SELECT id FROM dead_letters WHERE key = 'ann'")
    assert for_group(folder, group, "dlq", "redrive", "--id", first["id"], "--yes").exit_code == 0
    redriven = f"SELECT id FROM view WHERE id = '{first['id']}' AND state = 'COMMIT'"
    until(lambda: story.sql(redriven), SOON, "the redriven one is done")
    return story


def test_dead_letters_are_counted_by_a_field_of_their_values(story: Story) -> None:
    query = "SELECT value ->> 'customer' AS who, state, count(*) AS n FROM dead_letters GROUP BY 1, 2 ORDER BY 1, 2"
    assert story.sql(query) == [
        {"who": "ann", "state": "ready", "n": 1},
        {"who": "ann", "state": "redriven", "n": 1},
        {"who": "bob", "state": "ready", "n": 1},
    ]


def test_a_dead_letter_has_its_reason_times_and_headers(story: Story) -> None:
    (letter,) = story.sql("SELECT * FROM dead_letters WHERE key = 'bob'")
    assert (letter["topic"], letter["reason"], letter["text"]) == (story.group.main, "http-400", "no such sku")
    assert (letter["times"], letter["redrives"], letter["cycle"]) == (2, 0, 0)
    assert letter["first_failed_at"][:2] == letter["died_at"][:2] == "20"
    assert letter["died_at"].endswith("Z")
    headers = json.loads(letter["headers"])
    assert (headers["origin"], headers["raw"], headers["none"]) == ("app", "ff00", None)
    assert letter["id"] == f"{letter['topic']}:{letter['partition']}:{letter['offset']}"


def test_what_waits_has_its_value_and_when_it_is_due(story: Story) -> None:
    (waits,) = story.sql("SELECT *, due > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AS later FROM waiting")
    assert (waits["key"], waits["state"], waits["times"], waits["later"]) == ("eve", "waiting", 1, 1)
    assert json.loads(waits["value"]) == {"kind": "retry", "customer": "eve"}


def test_tables_are_joined_with_each_other_and_with_the_events(story: Story) -> None:
    query = """
        SELECT d.key, count(*) AS events FROM dead_letters d JOIN events e ON e.id = d.id
        WHERE d.state = 'redriven' GROUP BY 1
    """
    assert story.sql(query) == [{"key": "ann", "events": 5}], "failed three times, redriven, done"
    assert story.sql("SELECT count(*) AS n FROM view WHERE at > '2020'") == [{"n": 4}]


def test_only_what_a_query_names_is_read(story: Story) -> None:
    """Given a user whose configuration names no main topic that exists, the view itself can be asked all the same."""
    assert story.sql("SELECT count(*) AS n FROM view")[0]["n"] == 4
    denied = for_group(story.folder, story.group, "view", "sql", "SELECT * FROM dead_letters, nowhere", "-o", "jsonl")
    assert (denied.exit_code, denied.stdout) == (1, "")
    assert "no such table: nowhere" in denied.stderr
