"""Delete dead letters for good. Kafka deletes only from the beginning of a partition, so a plan can only do that.

In each partition the letters before the first one that must stay are deleted. Selected letters behind that one stay
too. `dlq purge` calls it, on its own thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.dead_letters import DeadLetters, LetterScan
from reconsume.sidecar.dlq.letters import OPEN, Filter, RedriveRequest
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.kafka.admin.changes import TopicAdmin
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.operation import Report

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

    @property
    def is_done(self) -> bool:
        """Whether something is to be deleted here, and Kafka has not refused it."""
        return self.deleted > 0 and not self.error


class Purge:
    """The plan of a purge, made by looking at every letter once, and its execution. Raises BrokerError.

    `since` and `until` are epoch ms.
    """

    def __init__(self, letters: DeadLetters, since: int, until: int, report: Report) -> None:
        self._letters = letters
        with LetterScan(letters, EVERY_LETTER, report) as scan:
            self.deletions = {
                partition: Deletion(span.begin) for partition, span in scan.whole.items() if span.begin < span.end
            }
            keeps = set[Partition]()
            """The partitions in which a letter was seen that stays."""
            for letter, state in scan:
                partition, timestamp = letter.record.source, letter.record.timestamp
                deletion = self.deletions[partition]
                deletion.older += timestamp < since
                if not since <= timestamp < until:
                    keeps.add(partition)
                elif partition in keeps:
                    deletion.behind += 1
                else:
                    deletion.deleted, deletion.before = deletion.deleted + 1, letter.record.offset + 1
                    deletion.open += state in OPEN

    @property
    def total(self) -> int:
        """The number of letters that the purge deletes."""
        return sum(deletion.deleted for deletion in self.deletions.values())

    def delete_letters(self) -> None:
        """Delete the planned letters. If the broker refuses a partition, its `error` says why."""
        before: dict[PartitionName, int] = {
            partition: deletion.before for partition, deletion in self.deletions.items() if deletion.deleted
        }
        for partition, error in TopicAdmin(self._letters.cluster).delete_records(before).items():
            self.deletions[Partition(*partition)].error = error
