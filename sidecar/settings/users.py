"""What the rights and topics of a group depend on, of a configuration."""

from __future__ import annotations

from sidecar.settings.model import Settings
from topics.rights import Group


def group_of(settings: Settings, *, direct: bool = False) -> Group:
    """The group as its users' rights see it. `direct`: the service of a relay writes retries by itself."""
    deliver = settings.deliver
    return Group(
        names=settings.names,
        topics=settings.topic_names,
        delays=settings.delays,
        mode=deliver.mode,
        broadcast=deliver.broadcast,
        view=settings.view.enabled,
        ui=settings.ui.enabled,
        redrives=settings.ui.enabled and settings.ui.token_file is not None,
        direct=direct,
    )
