"""Build the dashboard of a running sidecar. If it is disabled, its modules are not loaded: templates and the like use
memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.settings.model import Settings

if TYPE_CHECKING:
    from reconsume.sidecar.ui.app import DashboardThread
    from reconsume.sidecar.view.follower import ViewFollower

SHARE = 0.25
"""Share of a processor for one query to Kafka: the lanes need the same interpreter."""


def build_dashboards(settings: Settings, policy: Policy, topic: ViewFollower | None) -> list[DashboardThread]:
    """Build the dashboard if it is enabled. `topic`: a follower of the group's view that already runs, if there is
    one."""
    ui, operators = settings.ui, settings.operators
    if not ui.enabled:
        return []
    from reconsume.sidecar.ui.app import Dashboard, DashboardOptions, DashboardThread

    wanted = DashboardOptions(
        ui.listen,
        None if operators.token_file is None else Path(operators.token_file),
        # Without a token no action is possible, so nothing is written to the audit log.
        Path(operators.audit_file or "/dev/null"),
        ui.hosts,
        "ui.listen",
        settings.read,
        ui.base_path,
    )
    return [DashboardThread(Dashboard(settings, policy, wanted, topic, SHARE))]
