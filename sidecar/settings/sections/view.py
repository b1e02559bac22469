"""The section `view`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reconsume.sidecar.settings.values import Section, text

FOLDER = text("the absolute path of a folder", r"/.{0,4095}")


class View(Section):
    """`view`: the group-wide view, made from the events here, or by a Spark job (`reconsume view run`)."""

    enabled: bool = Field(
        default=False,
        description=(
            "Follow the group's view and sums into a local SQLite file and serve them; costs disk by the number of "
            "records that have failed lately, some 600 bytes each, and little memory."
        ),
    )
    source: Literal["auto", "events", "spark"] = Field(
        default="auto",
        description=(
            "What the view is made from. `events`: each reader folds the group's events itself, up to 2 million "
            "records or 2 GB; the group then needs neither VIEW nor STATS topic. `spark`: the rows that the job of "
            "`reconsume view run` writes. `auto`: the job's once it is within 1m of the end of the events, and the "
            "events again when it is 10m behind."
        ),
    )
    folder: Annotated[str | None, FOLDER.or_null()] = Field(
        default=None,
        description=(
            "Where the file is kept, so that a restart goes on where it was. Sidecars may share it: each has a file "
            "of its own. null is a temporary folder: each start then reads the whole view anew."
        ),
    )
