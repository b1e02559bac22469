"""The view without Spark: sidecars that fold the events of their group, and nothing but the group's usual topics.

The truth is the topic of the events itself, and what the service has seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.kafka.view_topics import folded, summed
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.process import Reply, SidecarProcess
from tests.support.view_rows import HOSTILE

SCRIPT = by_name({"flaky": (FAIL, OK), "poison": (FAIL,)})
SOON = 40.0
EACH = 20


def get(sidecar: SidecarProcess, path: str) -> Reply:
    return sidecar.request("GET", f"/v1/view/{path}")


def following(folder: Path | None = None, **view: Any) -> dict[str, Any]:
    return {"view": {"enabled": True, "folder": None if folder is None else str(folder), **view}}


def shown(sidecar: SidecarProcess) -> dict[str, Any]:
    page = get(sidecar, "messages?limit=1000")
    return {row["id"]: row for row in page.json["messages"]} if page.status == 200 else {}


def sums(sidecar: SidecarProcess) -> dict[str, Any]:
    rows = get(sidecar, "stats?limit=1000").json["stats"]
    return {f"{row['minute']}|{row['topic']}|{row['level'] or ''}|{row['reason']}": row for row in rows}


class Scene(NamedTuple):
    """Two sidecars of a group without a view's topic, and what their service does."""

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
    group, folder = create_group(new_group()), tmp_path_factory.mktemp("view")
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, pod, following(folder)) for pod in ("pod-0", "pod-1")]
    produce(group.bootstrap, group.main, [b"poison:%d" % number for number in range(EACH)])
    produce(group.bootstrap, group.main, [b"flaky:%d" % number for number in range(EACH)])
    for sidecar in pods:
        sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == EACH, SOON, "the poison is dead")
        sidecar.until(lambda: len(service.ledger.taken()) == EACH, SOON, "the flaky are taken")
    return Scene(group, pods, folder)


def test_every_sidecar_shows_the_fold_of_the_events_and_says_so(scene: Scene) -> None:
    group = scene.group
    for sidecar in scene.sidecars:

        def agrees(sidecar: SidecarProcess = sidecar) -> bool:
            return shown(sidecar) == folded(dump(group.bootstrap, group.names.events))

        sidecar.until(agrees, SOON, "it is what the events say")
        page = get(sidecar, "messages?state=DLQ").json
        assert len(page["messages"]) == EACH
        assert (page["source"], page["complete_since"], page["shortfall"]) == ("events", None, None)
        assert sums(sidecar) == summed(dump(group.bootstrap, group.names.events))
        assert sidecar.status()["view"]["source"] == "events"
        assert sidecar.status()["view"]["problem"] is None


def test_hostile_events_are_counted_and_what_follows_is_shown(scene: Scene) -> None:
    group, (sidecar, _), _ = scene
    bad = 'reconsume_bad_view_records_total{kind="events"}'
    assert sidecar.metric(bad) == 0
    produce(group.bootstrap, group.names.events, [Out(*record[:2]) for record in HOSTILE])
    sidecar.until(lambda: sidecar.metric(bad) == len(HOSTILE), SOON, "they are counted")
    before = len(shown(sidecar))
    produce(group.bootstrap, group.main, [b"poison:x"])
    sidecar.until(lambda: len(shown(sidecar)) == before + 1, SOON, "what follows is there")


@pytest.mark.long  # integration/view/test_events_follower.py restarts it in every run
def test_a_killed_sidecar_goes_on_and_counts_nothing_twice(scene: Scene) -> None:
    group, (sidecar, other), folder = scene
    sidecar.kill()
    produce(group.bootstrap, group.main, [b"poison:again%d" % number for number in range(EACH)])
    poison = {row.value for row in dump(group.bootstrap, group.main) if (row.value or b"").startswith(b"poison")}
    other.until(lambda: {row.value for row in dump(group.bootstrap, group.dlq)} == poison, SOON, "all poison is dead")
    sidecar.start()
    sidecar.wait_ready()
    good = [row for row in dump(group.bootstrap, group.names.events) if (row.value or b"").startswith(b'{"group"')]
    sidecar.until(lambda: shown(sidecar) == folded(good), SOON, "it goes on")
    assert sums(sidecar) == summed(good)
    assert len(list(folder.glob("*/*-events-*.sqlite"))) == 2
    assert not list(folder.glob("*/*-view-*.sqlite"))
