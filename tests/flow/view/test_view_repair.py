"""`view repair`: what lost events have left in the view is put right from the group's level topics and dead letters.

The test plays the Spark job: it writes the rows, from the events that it does not lose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reconsume.topics.events import Event, decode_event
from reconsume.topics.view_record import ViewRow
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.view.test_view_api import VIEW, write
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Row, dump, produce
from tests.support.kafka.view_topics import event, folded, tell, view_of
from tests.support.service.behaviours import FAIL, OK, by_name, verdict
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.view_rows import out, view_row, wall

SCRIPT = by_name({"flaky": (FAIL, OK), "poison": (FAIL,), "late": (FAIL, verdict("retry; delay=1h"))})
EACH = 8
SOON = 60.0


class Scene(NamedTuple):
    """A group at rest but for what waits an hour, and its configuration."""

    group: GroupTopics
    config: Path
    events: list[Row]


@pytest.fixture(scope="module")
def scene(
    new_group: FreshGroup,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scene:
    group, service = create_group(new_group(), also=VIEW), start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url)
    for kind in (b"flaky", b"poison", b"late"):
        produce(group.bootstrap, group.main, [b"%s:%d" % (kind, number) for number in range(EACH)])

    def states() -> list[str]:
        return sorted(row["state"] for row in folded(dump(group.bootstrap, group.names.events)).values())

    expected = sorted(EACH * ["COMMIT", "DLQ", "WAITING_RETRY"])
    sidecar.until(
        lambda: states() == expected and all(row["times"] == 2 for row in waiting(group)), SOON, "all is at rest"
    )
    sidecar.stop()
    file = tmp_path_factory.mktemp("repair") / "reconsume.json"
    file.write_text(json.dumps(config_of(group, service.url, 8471)), encoding="utf-8")
    return Scene(group, file, dump(group.bootstrap, group.names.events))


def waiting(group: GroupTopics) -> list[Any]:
    rows = folded(dump(group.bootstrap, group.names.events)).values()
    return [row for row in rows if row["state"] == "WAITING_RETRY"]


def spark(scene: Scene, rows: list[Row]) -> None:
    """Write the view of these events."""
    write(scene.group, [ViewRow(**row) for row in folded(rows).values()])


def stated(rows: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    names = ("state", "times", "redrives", "level", "due", "reason", "topic", "partition", "offset", "first_failed_at")
    return {identity: tuple(row[name] for name in names) for identity, row in rows.items()}


def repair(scene: Scene, *words: str) -> list[dict[str, Any]]:
    shown = reconsume("-c", scene.config, "view", "repair", "-o", "jsonl", *words)
    assert shown.exit_code == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


@pytest.mark.long  # unit/view_repair finds what is missing in every run
def test_a_view_that_has_lost_the_last_event_of_every_record_is_made_whole(scene: Scene) -> None:
    group, truth = scene.group, folded(scene.events)
    last = {identity: (row["state"], row["times"]) for identity, row in truth.items()}
    kept = [row for row in scene.events if (event := decoded(row)) and (event.state, event.times) != last[event.id]]
    spark(scene, kept)
    assert not stated(truth).items() & stated(view_of(group.bootstrap, group.group)).items()

    found = repair(scene, "--dry-run")
    assert {row["id"]: (row["state"], row["times"]) for row in found} == last
    assert len(dump(group.bootstrap, group.names.events)) == len(scene.events)

    assert repair(scene, "--yes") == found
    written = set(dump(group.bootstrap, group.names.events)) - set(scene.events)
    spark(scene, [*kept, *written])
    assert stated(view_of(group.bootstrap, group.group)) == stated(truth)
    assert repair(scene, "--yes") == []


def decoded(row: Row) -> Event:
    event = decode_event(row.value)
    assert isinstance(event, Event)
    return event


def test_a_view_that_is_behind_its_events_is_refused_as_most_of_what_it_lacks_is_only_unread(
    new_group: FreshGroup, tmp_path: Path
) -> None:
    group, file = create_group(new_group(), also=VIEW), tmp_path / "reconsume.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471)), encoding="utf-8")
    tell(group.bootstrap, [event(group.group, 1)])
    row = out(view_row(1, group=group.group))
    produce(group.bootstrap, group.names.view, [row._replace(timestamp=wall() - 3_600_000)])
    shown = reconsume("-c", file, "view", "repair", "--yes")
    assert shown.exit_code == 1
    assert "let the job of `reconsume view run` read all events first" in shown.stderr
    assert len(dump(group.bootstrap, group.names.events)) == 1
