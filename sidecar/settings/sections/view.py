"""The section `view`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reconsume.sidecar.settings.values import Checked, Section, text

FOLDER = text("the absolute path of a folder", r"/.{0,4095}")
SOURCES = ("events", "spark")


def read_source(value: object) -> str:
    """Return the source of the view. Raises ValueError if it is none; for the former `auto` with what replaces it."""
    if value == "auto":
        raise ValueError("must be events or spark: leave it out, or write spark where `reconsume view run` runs")
    if not isinstance(value, str) or value not in SOURCES:
        raise ValueError("must be events or spark")
    return value


SOURCE = Checked(read_source, "events or spark", {"enum": list(SOURCES)}, as_text=True)


class View(Section):
    """`view`: the group-wide view, made from the events here, or by a Spark job (`reconsume view run`)."""

    enabled: bool = Field(
        default=False,
        description=(
            "Follow the group's view and sums into a local SQLite file and serve them; costs disk by the number of "
            "records that have failed lately, some 600 bytes each, and little memory."
        ),
    )
    source: Annotated[Literal["events", "spark"], SOURCE] = Field(
        default="events",
        description=(
            "What the view is made from. `events`: each reader folds the group's events itself, up to 2 million "
            "records or 2 GB; the group then needs neither VIEW nor STATS topic. `spark`: the rows that the job of "
            "`reconsume view run` writes to these topics, which `topics apply` then creates."
        ),
    )
    folder: Annotated[str | None, FOLDER.or_null()] = Field(
        default=None,
        description=(
            "Where the file is kept, so that a restart goes on where it was. Sidecars may share it: each has a file "
            "of its own, in a folder that only its user can read (`reconsume-<uid>`). A link, a file or another user's "
            "folder of that name is refused. null is a temporary folder: each start then reads the whole view again."
        ),
    )
