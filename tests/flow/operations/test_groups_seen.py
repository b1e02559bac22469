"""All pods of a group are gone: who watches it from outside still says what is not delivered, and for how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, by_name
from tests.support.sidecar.cli import reconsume


def row_of(folder: Path, group: GroupTopics) -> dict[str, Any]:
    """What `reconsume groups` says of a group whose configuration it does not have."""
    file = folder / "watch.yaml"
    file.write_text(f"kafka: {{bootstrap.servers: '{group.bootstrap}'}}\nui: {{groups: ['{group.group}']}}\n")
    shown = reconsume("groups", "-c", file, "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    (row,) = json.loads(shown.stdout)
    assert isinstance(row, dict)
    return row


def test_a_group_that_was_scaled_to_nothing_is_seen_with_what_it_leaves(
    start_service: StartService, start_sidecar: StartSidecar, new_group: FreshGroup, tmp_path: Path
) -> None:
    """Given a sidecar that has delivered one record and lost another to the DLQ, when it is stopped and two more come,
    then the group has no member, and these two wait."""
    group = create_group(new_group(delays=(1_000,)), partitions=1, also=[Kind.POLICY])
    assert row_of(tmp_path, group)["state"] == "never started"
    service = start_service(by_name({"bad": (FAIL, FAIL)}))
    retry = {"max_reconsume_times": 1, "levels": ["1s"], "ladder": ["1s"]}
    sidecar = start_sidecar(group, service.url, overrides={"retry": retry})
    produce(group.bootstrap, group.main, [b"good", b"bad"])
    await_quiet(group, SECONDS)
    until(lambda: row_of(tmp_path, group)["dead_letters"] == 1, SECONDS, "one is a dead letter")
    row = row_of(tmp_path, group)
    assert (row["state"], row["members"], row["not_delivered"], row["oldest_s"]) == ("running", 1, 0, 0)
    assert len(row["versions"]) == 1
    sidecar.stop()
    produce(group.bootstrap, group.main, [b"late", b"later"])
    until(lambda: row_of(tmp_path, group)["oldest_s"] > 1, SECONDS, "what came later waits")
    row = row_of(tmp_path, group)
    assert (row["state"], row["members"], row["not_delivered"], row["dead_letters"]) == ("no member", 0, 2, 1)
