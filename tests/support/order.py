"""How the workers of a parallel run share the tests: a file at a time, the longest first, all that share Spark or the
dashboard in one.

No more workers than cores have a file whose tests start Spark, a broker of their own or a browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.drawn import MARK

LONGEST = (
    "tests/soak/test_soak.py",
    "tests/spark/test_view.py",
    "tests/spark/test_job.py",
    "tests/ui/test_browser.py",
    "tests/flow/operations/test_redrive.py",
    "tests/flow/view/test_view_truth.py",
    "tests/flow/view/test_spark_consumer.py",
    "tests/flow/view/test_spark_pages.py",
    "tests/flow/faults/test_leaderless.py",
    "tests/flow/faults/test_broker_killed.py",
    "tests/flow/lifecycle/test_pod_shutdown.py",
    "tests/flow/faults/test_two_sidecars_killed.py",
    "tests/flow/lifecycle/test_credentials.py",
    "tests/flow/faults/test_crashed_service.py",
    "tests/flow/faults/test_poison.py",
    "tests/integration/java/test_embedded_kafka.py",
    "tests/integration/kafka/test_consumer.py",
    "tests/flow/modes/test_outputs.py",
    "tests/integration/kafka/test_acls.py",
    "tests/flow/modes/test_ordered_ladder.py",
    "tests/integration/kafka/test_replaced_clients.py",
    "tests/flow/modes/test_ordered_lost_queues.py",
    "tests/integration/view/test_events_follower.py",
    "tests/integration/view/test_follower.py",
    "tests/cli/retries/test_events.py",
    "tests/cli/retries/test_commands.py",
    "tests/flow/lifecycle/test_membership.py",
    "tests/cli/dlq/test_refused.py",
    "tests/unit/core/test_fetching.py",
    "tests/flow/modes/test_relay.py",
    "tests/sim/test_group_sim.py",
    "tests/unit/core/test_progress.py",
    "tests/flow/operations/test_holds.py",
    "tests/cli/test_every_command.py",
    "tests/flow/modes/test_ordered_park.py",
    "tests/cli/dlq/test_redrive.py",
    "tests/cli/dlq/test_look.py",
    "tests/cli/dlq/test_settle.py",
    "tests/flow/faults/test_broken_parts.py",
    "tests/flow/modes/test_batch.py",
    "tests/integration/group_policy/test_follower.py",
    "tests/flow/modes/test_postponed.py",
    "tests/flow/modes/test_pull_faults.py",
    "tests/cli/topics/test_commands.py",
    "tests/flow/modes/test_ordered.py",
    "tests/flow/modes/test_failure_text.py",
    "tests/flow/faults/test_service_faults.py",
    "tests/cli/policy/test_commands.py",
    "tests/flow/operations/test_demo.py",
    "tests/flow/lifecycle/test_group_changes.py",
    "tests/cli/test_config.py",
    "tests/sim/test_client_conformance.py",
    "tests/flow/policy/test_policy.py",
    "tests/flow/pace/test_flows.py",
    "tests/flow/lifecycle/test_drain.py",
    "tests/soak_view/test_soak_view.py",
    "tests/flow/operations/test_migrate_page.py",
    "tests/cli/test_read_only_root.py",
    "tests/integration/kafka/test_secured_kafka.py",
    "tests/flow/view/test_view_api.py",
    "tests/flow/pace/test_pace.py",
    "tests/integration/doctor/test_doctor_group.py",
    "tests/flow/pace/test_rates.py",
    "tests/flow/faults/test_bombs.py",
    "tests/flow/operations/test_dev_up.py",
    "tests/flow/operations/test_testing_page.py",
    "tests/flow/policy/test_policy_modes.py",
    "tests/deploy/test_starter_files.py",
    "tests/flow/policy/test_retry_rules.py",
)
"""Files of half a minute and more: begun last, one would keep a single worker busy at the end of the run."""
WAITING = ("tests/flow/", "tests/integration/", "tests/cli/")
"""Tests that wait for Kafka and for processes: what computes comes behind them, and fills the cores to the end."""
SPARK, OWN_PROCESSES = "tests/spark/", "tests/spark/test_job.py"
"""Tests that share one Spark session, and those beside them that need none."""
UI = "tests/ui/"
"""Tests that share one planted group and its dashboard."""
PROXIED = (
    "tests/flow/faults/test_sidecar_killed.py",
    "tests/flow/faults/test_commit_unknown.py",
    "tests/flow/faults/test_restart_uncommitted.py",
    "tests/flow/lifecycle/test_drain_in_rebalance.py",
    "tests/flow/modes/test_relay_killed.py",
    "tests/flow/modes/test_relay_posts.py",
    "tests/integration/freed/test_freed.py",
    "tests/integration/kafka/test_late_ends.py",
    "tests/integration/kafka/test_transaction.py",
    "tests/sim/test_late_conformance.py",
    "tests/integration/kafka/test_unanswered.py",
)
"""Files that share a broker behind a proxy."""
GUARDED = (
    "tests/integration/kafka/test_refused_progress.py",
    "tests/integration/dlq/test_rights.py",
    "tests/flow/lifecycle/test_several_groups_rights.py",
)
"""Files that share a broker which checks rights."""
HEAVY = (
    SPARK,
    UI,
    "tests/package/",
    "tests/soak",
    "tests/packet_loss",
    "tests/flow/view/test_lake_tables.py",
    "tests/flow/view/test_on_a_cluster.py",
    "tests/integration/java/",
    "tests/integration/kafka/test_unreachable_leader.py",
    "tests/integration/delivery/test_broadcast_rights.py",
)
"""What starts a Java or a browser of its own, or fills several cores in another way."""
HEAVY_AT_ONCE = max(1, os.cpu_count() or 1)
WAIT_AT_ONCE = 8
"""Workers that begin with what waits: enough to keep two cores busy for two thirds of the time. More of them take what
only computes, as long as there is any of it."""


class Shared(LoadScopeScheduling):
    """Gives a worker a file at a time, in the order of collection."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        """Take the tests in the order that `longest_first` gave them, not by their number in a file."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next file; the next light one while others have as many heavy ones as there are cores."""
        if int(node.gateway.id.removeprefix("gw")) >= WAIT_AT_ONCE:
            self._prefer(_computes)
        heavy = sum(other is not node and _has_heavy(work) for other, work in self.assigned_work.items())
        if heavy >= HEAVY_AT_ONCE:
            self._prefer(lambda scope: not scope.startswith(HEAVY))
        super()._assign_work_unit(node)

    def _prefer(self, fits: Callable[[str], bool]) -> None:
        """Have the first file that fits be the next one, if there is any."""
        scope = next(filter(fits, self.workqueue), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)

    def remove_node(self, node: WorkerController) -> str | None:
        """Let the others do what a worker that crashed has left.

        xdist would give them its finished files too. A worker for which a file has no test left waits for ever.
        """
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        crashed: str | None = super().remove_node(node)
        return crashed

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        for sharing in (PROXIED, GUARDED):
            if file in sharing:
                return sharing[0]
        folder = next((folder for folder in (SPARK, UI) if file.startswith(folder) and file != OWN_PROCESSES), None)
        return folder or file


def _has_heavy(work: Mapping[str, Mapping[str, bool]]) -> bool:
    """Whether a worker has a test of a heavy file before it."""
    return any(scope.startswith(HEAVY) and not all(unit.values()) for scope, unit in work.items())


def _computes(scope: str) -> bool:
    """Whether a file neither waits for others nor needs a broker that several files share."""
    return not scope.startswith((*WAITING, *HEAVY)) and scope not in (PROXIED[0], GUARDED[0])


def longest_first(items: list[pytest.Item]) -> None:
    """Put files of which a long test is drawn first, then the longest, then those that wait; all others stay as they
    are."""
    places = {file: place for place, file in enumerate(LONGEST)}
    drawn = {_file_of(item) for item in items if item.get_closest_marker(MARK) is not None}
    items.sort(
        key=lambda item: (_file_of(item) not in drawn, places.get(_file_of(item), _by_folder(item.nodeid))),
    )


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::", 1)[0]


def _by_folder(nodeid: str) -> int:
    """The place of a test that is in none of the longest files."""
    return len(LONGEST) + (0 if nodeid.startswith(WAITING) else 1)
