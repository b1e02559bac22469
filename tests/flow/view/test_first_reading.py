"""A group that the job has never read, with a backlog: what its readers are told meanwhile is true of what they see."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from reconsume.sidecar.view.copy import open_copy
from reconsume.sidecar.view.follower import CopyStatus, ViewFollower
from reconsume.sidecar.view.query import questions
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import Event, decode_event
from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import dump
from tests.support.kafka.view_topics import event, tell
from tests.support.sidecar.view_process import START_SECONDS, ViewProcess

pytestmark = pytest.mark.long

WAVES, EACH = 5, 200
APART = 1.3
"""Seconds: the age is exact to one."""
SOON = 120.0


def test_the_view_never_says_that_it_is_newer_than_the_oldest_event_that_it_lacks(
    new_group: FreshGroup, tmp_path: Path
) -> None:
    """Given a backlog of seconds, when a job reads it for the first time in small batches, and the age of the view is
    asked again and again, then each event that is older than the answer is in the view."""
    group = create_group(new_group(), also=(Kind.VIEW,))
    for wave in range(WAVES):
        tell(group.bootstrap, [event(group.group, wave * EACH + number) for number in range(EACH)])
        time.sleep(APART)  # the events' times are what is told apart
    appended = {
        told.id: row.timestamp for row in dump(group.bootstrap, group.names.events) if (told := good(row.value))
    }
    assert len(appended) == WAVES * EACH
    kafka = {"bootstrap.servers": group.bootstrap}
    thread = ViewFollower(kafka, group.names, tmp_path / "copy", "test", check_every=0.1, source=Source.SPARK)
    thread.start()
    answers = list[int]()
    words = ("--max-offsets=40", "--trigger=300ms")

    def caught_up() -> bool:
        status = thread.status
        if status.as_of is not None:
            answers.append(status.as_of)
            assert_complete(status, appended)
        return status.as_of is not None and status.as_of > max(appended.values()) + 1_000

    try:
        with ViewProcess(group.bootstrap, tmp_path / "view", *words, group=group.group) as job:
            job.until(caught_up, START_SECONDS + SOON, "the view says that it is complete", 0.05)
            assert len({answer // 1_000 for answer in answers}) > 3, "it was asked meanwhile"
            assert job.stop() == 0
    finally:
        thread.stop()
        thread.join()


def good(value: bytes | None) -> Event | None:
    told = decode_event(value)
    return told if isinstance(told, Event) else None


def assert_complete(status: CopyStatus, appended: dict[str, int]) -> None:
    """Each event from before the time of the answer has its row."""
    assert status.path is not None
    assert status.as_of is not None
    before = [identity for identity, at in appended.items() if at < status.as_of]
    with questions(status.path) as ask:
        lacking = [identity for identity in before if ask.message(identity) is None]
    assert lacking == [], f"{len(lacking)} of {len(before)} are older than {status.as_of}, and have no row"


def test_the_test_would_see_an_answer_that_is_too_new(tmp_path: Path) -> None:
    """Given a copy without rows, when it says that it is complete until now, then that is an error."""
    store = open_copy(tmp_path, "billing", Source.SPARK)
    try:
        with pytest.raises(AssertionError, match="1 of 1 are older"):
            assert_complete(CopyStatus(store.path, 5, "", {}), {"orders:0:1": 4, "orders:0:2": 6})
    finally:
        store.close()
