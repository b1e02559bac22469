"""The section `ui`: where the dashboard listens."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from reconsume.sidecar.settings.addresses import Listen, parse_listen
from reconsume.sidecar.settings.sections.api import HOST, LISTEN
from reconsume.sidecar.settings.values import Section, many, text

Read: TypeAlias = Literal["open", "signed-in"]
"""Who may see keys, values, headers and texts of records: every reader, or only those who have signed in."""
PAGES = (
    "activity", "dlq", "find", "holds", "instances", "keys", "part", "policy", "record", "records", "sign-in",
    "sign-out", "static",
)  # fmt: skip
"""The first segments of the dashboard's own paths."""


def expect_no_page(path: str) -> None:
    """Raise ValueError if a base path begins like a page.

    A proxy that strips it would then send paths that seem to have it still.
    """
    if path and (first := path.split("/")[1]) in PAGES:
        raise ValueError(f"begins with /{first}, which is a page of the dashboard: choose another name")


BASE_PATH = text(
    "a path like /reconsume, of letters, digits and ._~-, without / at its end and without the segments . and ..",
    r"|(?=.{2,200}$)(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+",
    expect_no_page,
)


class Ui(Section):
    """`ui`: the dashboard, served by the sidecar itself."""

    enabled: bool = Field(
        default=False,
        description=(
            "Serve the dashboard (`reconsume ui`) from this process, on a thread of its own. Whoever "
            "reaches it reads it (on loopback this pod, and who may port-forward to it); `read` says who sees values."
        ),
    )
    listen: Annotated[str, LISTEN] = Field(
        default="127.0.0.1:8473",
        description=(
            "Where the dashboard listens, and nothing else does. Outside loopback it needs `operators.token_file`."
        ),
    )
    read: Read | None = Field(
        default=None,
        description=(
            "Who may see keys, values, headers and texts of records, and why an operator acted, on the dashboard and "
            "through the API: every reader, or only those who have signed in (API: who have a token). The others see "
            "counts, states, topics, ids, classes of reasons and who acted. null: signed-in where "
            "`operators.token_file` is set, or the dashboard is enabled and listens outside loopback; otherwise open."
        ),
    )
    hosts: Annotated[tuple[str, ...], many(HOST, "names of hosts", most=64)] = Field(
        default=(),
        description="Names by which it may be called besides those of loopback; calls by others are refused.",
    )
    base_path: Annotated[str, BASE_PATH] = Field(
        default="",
        description=(
            "The path below which a proxy serves the dashboard, such as `/reconsume` for "
            "`https://tools.example.org/reconsume/`. Every link has it; requests with and without it are served, so "
            "the proxy may strip it or not. `reconsume ui` uses it, too. Empty: the dashboard is at the root of its "
            "host."
        ),
    )

    @property
    def address(self) -> Listen:
        """The address on which the dashboard listens."""
        return parse_listen(self.listen)
