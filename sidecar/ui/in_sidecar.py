"""Build the dashboard of a running sidecar. If it is disabled, its modules are not loaded: templates and the like use
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.settings.model import Settings

if TYPE_CHECKING:
    from reconsume.sidecar.ui.app import DashboardOptions, DashboardThread
    from reconsume.sidecar.view.follower import ViewFollower

SHARE = 0.25
"""Share of a processor for one query to Kafka: the lanes need the same interpreter."""


def build_dashboards(settings: Settings, policy: Policy, topic: ViewFollower | None) -> list[DashboardThread]:
    """Build the dashboard if it is enabled. `topic`: a follower of the group's view that already runs, if there is
    one."""
    if not settings.ui.enabled:
        return []
    from reconsume.sidecar.ui.app import Dashboard, DashboardThread

    return [DashboardThread(Dashboard(settings, policy, options_of(settings), topic, SHARE))]


def build_groups_dashboards(all_settings: Sequence[Settings]) -> list[DashboardThread]:
    """Build the dashboard of several groups if it is enabled: a table of them, and the pages of each."""
    if not all_settings[0].ui.enabled:
        return []
    from reconsume.sidecar.ui.app import DashboardThread
    from reconsume.sidecar.ui.groups_app import GroupsDashboard

    known = {settings.group: settings for settings in all_settings}
    base = replace(all_settings[0], ui=replace(all_settings[0].ui, groups=tuple(known)))
    return [DashboardThread(GroupsDashboard(base, options_of(base), known, SHARE))]


def options_of(settings: Settings) -> DashboardOptions:
    """Return how the dashboard of a sidecar is served."""
    from reconsume.sidecar.ui.app import DashboardOptions

    ui, operators = settings.ui, settings.operators
    return DashboardOptions(
        ui.listen,
        None if operators.token_file is None else Path(operators.token_file),
        # Without a token no action is possible, so nothing is written to the audit log.
        Path(operators.audit_file or "/dev/null"),
        ui.hosts,
        "ui.listen",
        settings.read,
        ui.base_path,
    )
