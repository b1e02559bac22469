"""The rules of a group, by which a Spark job routes records to the same topics as the sidecar. Pure.

`configuration.py` makes `Rules` on the driver, as one frozen value that Spark carries to the workers. So this file
imports nothing that an executor lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from reconsume.topics.group_rules import GroupRules
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.rates import Rate
from reconsume.topics.tags import HEADER as TAGS_HEADER

Values: TypeAlias = Mapping[str, Any]
"""Values of the policy by its keys, such as `max_reconsume_times`, as they are written in YAML."""
BURST = 10
"""Seconds. A batch has no more records than the rate allows in them."""


class Rules(GroupRules, frozen=True):
    """The rules of a group, by which records are routed. `build_rules` and `rules_from` make and check them.

    `name`: what tells the query from the group's others.
    `own`: the job's own values by the keys of the policy. They hold where the policy has none.
    `failure_text`: `message`, the message of an exception is the failure's text, or `none`.
    `tags`: the wanted tags of main topics; all records of the other main topics are wanted. `tags_header`: the header
    that has a record's tag.
    `rate`: how many records the query may take, over all batches; None: no limit.
    `holds`: what operators hold now, in the order in which they said it.
    `file`: the absolute path of the configuration that they were read from; empty if there is none.
    """

    name: str = ""
    own: Values = msgspec.field(default_factory=dict)
    failure_text: str = "message"
    tags: dict[str, frozenset[bytes] | None] = msgspec.field(default_factory=dict)
    tags_header: str = TAGS_HEADER
    rate: Rate | None = None
    holds: tuple[HoldRecord, ...] = ()
    file: str = ""

    @property
    def private_group(self) -> str:
        """The consumer group that holds the query's progress, and by which its transactional ids begin."""
        return self.names.spark_group(self.name)

    @property
    def levels(self) -> dict[str, int]:
        """Every level topic and its delay in ms."""
        return {self.names.level(delay, topic): delay for delay in self.delays for topic in self.topics}

    @property
    def level_prefixes(self) -> list[str]:
        """How the names of level topics begin, whatever their delays."""
        return sorted({self.names.level(0, topic).removesuffix("0s") for topic in self.topics})

    def bound(self, most: int) -> int:
        """Return how many records a batch of one source may have, which would have `most` without a rate."""
        return most if self.rate is None else max(1, min(most, int(self.rate.per_second * BURST)))
