"""Delete dead letters for good. Kafka deletes only from the beginning of a partition, so a plan can only do that.

In each partition the letters before the first one that must stay are deleted. Selected letters behind that one stay
too.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.copies import with_copies
from reconsume.sidecar.dlq.letters import Eligibility, Filter, RedriveRequest, read_letter
from reconsume.sidecar.dlq.plan import Progress
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER, eligibility
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.topics import DlqTopics
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.admin.topics import TopicAdmin

EVERY_LETTER = RedriveRequest(Filter(), MOST_REDRIVES_EVER, forgotten=True)
"""A request that selects every letter. With it, each letter is checked for an earlier redrive."""


@dataclass
class Deletion:
    """The deletion in one partition. All records below the offset `before` are deleted."""

    before: int
    deleted: int = 0
    open: int = 0
    """The number of deleted letters that were never redriven."""
    older: int = 0
    """Letters before the time range. They stay, and keep the letters behind them from being deleted."""
    behind: int = 0
    """Selected letters that stay because they lie behind one that stays."""
    error: str = ""


class Purge:
    """The plan of a purge, made by looking at every letter once, and its execution. Raises BrokerError."""

    def __init__(self, topics: DlqTopics, policy: Policy, since: int, until: int, progress: Progress) -> None:
        self.deletions: dict[Partition, Deletion] = {}
        self._admin = TopicAdmin(topics.cluster)
        layout = topics.layout()
        pasts = with_copies(topics, policy, layout, topics.pasts(layout), progress)
        self.deletions = {
            partition: Deletion(span.begin) for partition, span in layout.items() if span.begin < span.end
        }
        stays = dict.fromkeys(self.deletions, False)
        with Scan(topics, layout) as scan:
            for record in scan:
                deletion, partition = self.deletions[record.source], record.source
                progress(scan, sum(one.deleted for one in self.deletions.values()))
                deletion.older += record.timestamp < since
                if not since <= record.timestamp < until:
                    stays[partition] = True
                elif stays[partition]:
                    deletion.behind += 1
                else:
                    deletion.deleted, deletion.before = deletion.deleted + 1, record.offset + 1
                    verdict = eligibility(read_letter(record, policy), EVERY_LETTER, pasts[partition])
                    deletion.open += verdict not in (Eligibility.REDRIVEN, Eligibility.DISMISSED, Eligibility.COPY)

    @property
    def total(self) -> int:
        """The number of letters that the purge deletes."""
        return sum(deletion.deleted for deletion in self.deletions.values())

    def carry_out(self) -> None:
        """Delete the planned letters. If the broker refuses a partition, its `error` says why."""
        before: dict[PartitionName, int] = {
            partition: deletion.before for partition, deletion in self.deletions.items() if deletion.deleted
        }
        for partition, error in self._admin.delete_records(before).items():
            self.deletions[Partition(*partition)].error = error
