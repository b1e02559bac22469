"""Which topics the headers on our own topics may name as REAL_TOPIC.

During a roll-out that adds or removes a main topic, two configurations of one group run side by side. A valid retry
state is therefore accepted even if this instance does not consume its topic; `decide.after_wait` passes the record on.
"""

from __future__ import annotations

from sidecar.core.policy import Policy
from topics.names import LEGAL_NAMES


class MainTopics:
    """The names that may be a main topic of any instance: not the group's own topics, nor illegal names."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __contains__(self, topic: object) -> bool:
        topics = self._policy.topics
        return topic in topics or (topic in LEGAL_NAMES and self._policy.names.role(str(topic), topics) is None)
