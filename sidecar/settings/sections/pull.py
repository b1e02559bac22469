"""The section `pull`.

Only types and limits are here. The rules between two settings are in `checks.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reconsume.sidecar.settings.values import Section, duration, whole
from reconsume.topics.durations import parse_duration as ms


class Pull(Section):
    """`pull`: limits of pull mode."""

    min_invisible: Annotated[int, duration("10ms", "12h")] = Field(
        default=ms("10s"),
        description=(
            "The shortest invisible duration that a receive may ask for; shorter is refused with 400. Short "
            "leases expire while the service still works, and each one costs a retry."
        ),
    )
    max_leased: Annotated[int, whole(1, 65_536)] = Field(
        default=4096,
        description=(
            "Records that may be leased or ready to be received at once, over all partitions. `deliver.buffer_memory` "
            "bounds their bytes."
        ),
    )
