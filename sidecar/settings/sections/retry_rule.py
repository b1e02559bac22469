"""One rule of `retry.rules`, and its kinds of values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reconsume.sidecar.settings.sections.ladder import LADDER
from reconsume.sidecar.settings.values import Section, duration, many, text, whole
from reconsume.topics.levels import LadderSpec
from reconsume.topics.retry_rules import LONGEST_NAME, MOST_PATTERNS

TIMES = whole(0, 999_999)
AGE = duration("1s", "3650d")
NAME = text(f"a name: letters of ASCII, digits and . _ -, at most {LONGEST_NAME}", r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")
TOPICS = text("a main topic, or a glob of topics like orders-*", r"[a-zA-Z0-9._*?\[\]!-]{1,249}")
REASONS = text("a class of reasons, or a glob, like http-409, http-5* or timeout", r"[a-zA-Z0-9._*?\[\]!-]{1,64}")


class Rule(Section):
    """One rule of `retry.rules`: null is what the group has."""

    name: Annotated[str, NAME] = Field(
        description="What the rule is called; it is shown and changed by its name.",
    )
    topics: Annotated[tuple[str, ...], many(TOPICS, "topics or globs", most=MOST_PATTERNS)] = Field(
        default=(),
        description="The main topics that it is for, by name or glob; none: all.",
    )
    reasons: Annotated[tuple[str, ...], many(REASONS, "reasons or globs", most=MOST_PATTERNS)] = Field(
        default=(),
        description="The classes of failures that it is for, by name or glob; none: all.",
    )
    ladder: Annotated[LadderSpec | None, LADDER.or_null()] = Field(
        default=None,
        description="As `retry.ladder`.",
    )
    max_reconsume_times: Annotated[int | None, TIMES.or_null()] = Field(
        default=None,
        description="As `retry.max_reconsume_times`.",
    )
    max_age: Annotated[int | None, AGE.or_null()] = Field(
        default=None,
        description="As `retry.max_age`.",
    )
    dead_letter: bool = Field(
        default=False,
        description="Such a failure is the last one: the record goes to the DLQ.",
    )
