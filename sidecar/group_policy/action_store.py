"""Write and read the actions of a group, for the command line and the dashboard.

`ActionStore.noted` is around the work of a command. Its records are for people: if one cannot be written, the command
says so and goes on, because in an incident the redrive counts more than its record. The events of a redrive and the
decisions of a settlement name their author all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.group_policy.topic import read_messages, write_records
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.printable import printable
from reconsume.topics.action_record import (
    LONGEST_ERROR,
    LONGEST_WHAT,
    MOST_ACTIONS,
    ActionHeard,
    ActionRecord,
    action_key,
    render_action,
)
from reconsume.topics.names import Names
from reconsume.topics.policy_record import parse_record

CLIENT = "reconsume-action"


@dataclass
class Tally:
    """What an action has done so far. `records`: how many it has changed."""

    records: int = 0


class ActionStore:
    """The actions of one group. `warn` gets a sentence if a record could not be written."""

    def __init__(self, kafka: Mapping[str, str], names: Names, warn: Callable[[str], None]) -> None:
        self._kafka, self._names, self._warn = kafka, names, warn

    @contextmanager
    def noted(self, action: str, who: str, what: str = "", why: str = "") -> Iterator[Tally]:
        """Write that an action begins, and how it ended, whatever ends the block. The block fills in the tally.

        An error of the block is kept as the reason, and raised again.
        """
        cut = printable(what)
        cut = cut if len(cut) <= LONGEST_WHAT else f"{cut[: LONGEST_WHAT - 1]}…"
        record = ActionRecord(action, who, wall(), cut, why)
        ident, tally, error = secrets.token_hex(8), Tally(), ""
        is_begun = self._write({action_key(ident): render_action(record)})
        try:
            yield tally
        except KeyboardInterrupt:
            error = "interrupted"
            raise
        except Exception as fault:
            error = printable(str(fault) or type(fault).__name__)[:LONGEST_ERROR]
            raise
        finally:
            if is_begun:
                ended = replace(record, ended=wall(), records=tally.records, error=error)
                self._write({**self._too_many(), action_key(ident): render_action(ended)})

    def _write(self, records: Mapping[bytes, bytes | None]) -> bool:
        try:
            if not Cluster(self._kafka, CLIENT).existing([self._names.policy]):
                self._warn(f"warning: this is not in the list of actions: {self._names.policy} does not exist")
                return False
            write_records(self._kafka, self._names, CLIENT, records)
        except ReconsumeError as fault:
            self._warn(f"warning: this is not in the list of actions: {fault}")
            return False
        return True

    def _too_many(self) -> dict[bytes, None]:
        """Return the keys of the actions that are to be deleted: all but the last MOST_ACTIONS that were written."""
        try:
            return dict.fromkeys(action_key(ident) for ident in list(self.read())[:-MOST_ACTIONS])
        except ReconsumeError as fault:
            self._warn(f"warning: old actions stay in the list: {fault}")
            return {}

    def read(self) -> dict[str, ActionRecord]:
        """Return the actions, by id, in the order in which they were written last. Raises BrokerError."""
        actions: dict[str, ActionRecord] = {}
        for message in read_messages(Cluster(self._kafka, CLIENT), self._names, ANSWER_SECONDS):
            match parse_record(message.key(), message.value()):
                case ActionHeard(id=ident, record=record):
                    actions.pop(ident, None)
                    if record is not None:
                        actions[ident] = record
        return actions
