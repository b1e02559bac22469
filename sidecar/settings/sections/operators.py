"""The section `operators`: who may change the group, on the dashboard and by the API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reconsume.sidecar.settings.values import Section, text

FILE = text("the path of a file", r".{1,4096}").or_null()


class Operators(Section):
    """`operators`: the tokens of those who hold, settle and redrive, and the log of what they do."""

    token_file: Annotated[str | None, FILE] = Field(
        default=None,
        description=(
            "A file with operators' tokens, one a line, of at least 16 characters. Each opens the dashboard, the "
            "calls of the API that change the group, and reading with values; null: nobody can do that through the "
            "API or the dashboard. A line `NAME: TOKEN` names its token for the audit; one that begins with # is a "
            "comment. Read when it is needed, so that a rotated secret takes effect."
        ),
    )
    audit_file: Annotated[str | None, FILE] = Field(
        default=None,
        description=(
            "Where each action on the dashboard is written before it begins; needed with `operators.token_file` where "
            "`ui.enabled` is set."
        ),
    )
