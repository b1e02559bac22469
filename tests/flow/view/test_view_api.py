"""A sidecar that follows the group's view: what it serves, and that nothing of the view is in the records' way.

The test plays the Spark job: it writes the rows and sums itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import asdict

from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.names import Kind
from reconsume.topics.view_record import ViewRow
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.kafka.view_topics import commit_as_job
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.process import Reply, SidecarProcess
from tests.support.view_rows import HOSTILE, out, view_row, wall

SCRIPT = by_name({"flaky": (FAIL, OK), "poison": (FAIL,)})
VIEW = (Kind.VIEW,)
SOON = 40.0


def get(sidecar: SidecarProcess, path: str) -> Reply:
    return sidecar.request("GET", f"/v1/view/{path}")


def write(group: GroupTopics, rows: Iterable[ViewRow | Out]) -> None:
    produce(group.bootstrap, group.names.view, [row if isinstance(row, Out) else out(row) for row in rows])


def spark(group: GroupTopics) -> list[Event]:
    """Write the present state of each record, from its last event, once; the events."""
    events = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    last = {event.id: event for event in events if isinstance(event, Event)}
    rows = [
        ViewRow(**asdict(event) | {"last_failed_at": event.at, "retries": event.times}, updated_at=wall())
        for event in last.values()
    ]
    produce(group.bootstrap, group.names.view, map(out, rows))
    commit_as_job(group.bootstrap, group.names)
    return list(last.values())


def following(folder: Path | None = None, **view: Any) -> dict[str, Any]:
    return {"view": {"enabled": True, "source": "spark", "folder": None if folder is None else str(folder), **view}}


class Scene(NamedTuple):
    """Two sidecars of one group that share a folder, and a service that fails."""

    group: GroupTopics
    sidecars: list[SidecarProcess]
    folder: Path


@pytest.fixture(scope="module")
def scene(
    new_group: FreshGroup,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scene:
    group, folder = create_group(new_group(), also=VIEW), tmp_path_factory.mktemp("view")
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, pod, following(folder)) for pod in ("pod-0", "pod-1")]
    return Scene(group, pods, folder)


def test_what_failed_is_told_by_every_sidecar_of_the_group(scene: Scene) -> None:
    group, sidecars, _ = scene
    never = "nothing was ever written"
    sidecars[0].until(lambda: never in get(sidecars[0], "messages").json["detail"], SOON, "it says so")
    assert get(sidecars[0], "messages").status == 503
    produce(group.bootstrap, group.main, [b"poison:%d" % number for number in range(20)])
    sidecars[0].until(lambda: len(dump(group.bootstrap, group.dlq)) == 20, SOON, "all are dead")
    events = spark(group)
    for sidecar in sidecars:
        sidecar.until(
            lambda sidecar=sidecar: (
                get(sidecar, "messages").status == 200
                and len(get(sidecar, "messages?state=DLQ").json["messages"]) == 20
            ),
            SOON,
            "the view is served",
        )
        shown = get(sidecar, f"messages/{events[0].id}").json
        assert (shown["state"], shown["id"], shown["reason"]) == ("DLQ", events[0].id, "http-500")
        assert get(sidecar, "messages?state=WAITING_RETRY").json["messages"] == []
        assert get(sidecar, "messages/orders:0:999999").status == 404
        dead = sum(row["dead"] for row in get(sidecar, "stats").json["stats"])
        assert dead == 20, "the sums are counted from the events"


def test_the_age_is_told_and_small_while_all_is_well(scene: Scene) -> None:
    sidecar = scene.sidecars[0]
    page = get(sidecar, "messages").json
    assert page["as_of"] <= wall()
    sidecar.until(lambda: get(sidecar, "messages").json["as_of"] > page["as_of"], SOON, "it gets newer")
    assert sidecar.metric("reconsume_view_lag_seconds") < 30
    assert sidecar.status()["view"]["problem"] is None


def test_hostile_rows_are_counted_and_nothing_stops(scene: Scene) -> None:
    group, (sidecar, _), _ = scene
    keyed = [record for record in HOSTILE if record.key is not None]
    write(group, [*keyed, view_row(5_000, group="other")])
    good = view_row(5_001, group=group.group)
    write(group, [good])
    sidecar.until(lambda: get(sidecar, f"messages/{good.id}").status == 200, SOON, "what follows them is served")
    bad = 'reconsume_bad_view_records_total{kind="view"}'
    sidecar.until(lambda: sidecar.metric(bad) == len(keyed) + 1, SOON, "they are counted")


def test_a_file_that_is_lost_is_rebuilt_and_the_other_sidecar_does_not_notice(scene: Scene) -> None:
    _, (one, two), folder = scene
    files = sorted(folder.glob("*/*.sqlite"))
    assert len(files) == 2
    files[0].unlink()
    for sidecar in (one, two):

        def served(sidecar: SidecarProcess = sidecar) -> bool:
            page = get(sidecar, "messages?state=DLQ")
            return page.status == 200 and len(page.json["messages"]) == 20

        sidecar.until(served, SOON, "the view is served")
    assert files[0].exists()


def test_a_killed_sidecar_serves_what_it_had_and_goes_on(scene: Scene) -> None:
    group, (sidecar, _), folder = scene
    sidecar.kill()
    row = view_row(6_000, State.COMMIT, group=group.group)
    write(group, [row])
    sidecar.start()
    sidecar.wait_ready()
    sidecar.until(lambda: get(sidecar, f"messages/{row.id}").status == 200, SOON, "it goes on")
    assert len(list(folder.glob("*/*.sqlite"))) == 2


def test_a_view_that_cannot_be_kept_or_is_missing_stops_no_record(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given a folder that is a file and no view's topics, then records are retried and the stop is clean."""
    group = create_group(new_group())
    taken = tmp_path / "taken"
    taken.write_bytes(b"")
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides=following(taken))
    produce(group.bootstrap, group.main, [b"flaky:%d" % number for number in range(50)])
    sidecar.until(lambda: len(service.ledger.taken()) == 50, SOON, "all are taken in the end")
    refused = get(sidecar, "messages")
    assert (refused.status, "cannot be kept" in refused.json["detail"]) == (503, True)
    assert sidecar.request("GET", "/livez").status == 200
    taken.unlink()
    sidecar.until(
        lambda: "missing, or not for this user" in get(sidecar, "messages").json["detail"],
        SOON,
        "it says what is missing",
    )
    assert sidecar.stop().code == 0


def test_without_a_view_the_calls_say_so_and_the_rest_works(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    sidecar = start_sidecar(create_group(new_group()), start_service(SCRIPT).url)
    assert get(sidecar, "messages").status == 404
    assert sidecar.status()["view"] is None
    assert "\nreconsume_view_lag_seconds{" not in sidecar.metrics()


def test_a_stop_is_clean_and_leaves_no_temporary_file(
    new_group: FreshGroup,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    group = create_group(new_group(), also=VIEW)
    sidecar = start_sidecar(group, start_service(SCRIPT).url, overrides=following())
    sidecar.until(lambda: list(tmp_path.glob("reconsume-view-*")), SOON, "the file is made")
    began = time.monotonic()
    assert sidecar.stop().code == 0
    assert time.monotonic() - began < 15
    assert not list(tmp_path.glob("reconsume-view-*"))
