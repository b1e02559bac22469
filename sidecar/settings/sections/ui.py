"""The section `ui`: where the dashboard listens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reconsume.sidecar.settings.addresses import Listen, parse_listen
from reconsume.sidecar.settings.sections.api import HOST, LISTEN
from reconsume.sidecar.settings.values import Section, many


class Ui(Section):
    """`ui`: the dashboard, served by the sidecar itself."""

    enabled: bool = Field(
        default=False,
        description=(
            "Serve the dashboard (`reconsume ui`) from this process, on a thread of its own. It shows keys, headers "
            "and values of dead letters to whoever reaches it: on loopback this pod, and who may port-forward to it."
        ),
    )
    listen: Annotated[str, LISTEN] = Field(
        default="127.0.0.1:8473",
        description="Where the dashboard listens, and nothing else does. Outside loopback it needs `operators.token_file`.",
    )
    hosts: Annotated[tuple[str, ...], many(HOST, "names of hosts", most=64)] = Field(
        default=(),
        description="Names by which it may be called besides those of loopback; calls by others are refused.",
    )

    @property
    def address(self) -> Listen:
        """The address on which the dashboard listens."""
        return parse_listen(self.listen)
