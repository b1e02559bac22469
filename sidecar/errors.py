"""The tree of our errors, split by who must act. Only the classes are here; the command line prints the errors.

    ReconsumeError
    ├── ConfigError     the operator: a setting, an option or a file is wrong; all problems together
    ├── SetupError      the operator of the machine: Java is missing, a jar cannot be fetched, a broker will not start
    ├── BrokerError     the operator of Kafka: the cluster is unreachable or refuses a request
    ├── ContractError   the owner of the topics: a topic or a header is not as agreed
    └── RecordError     whoever asked: no such record or object, or it is not in a state for what was asked
        └── LetterError the same of a dead letter

A failed delivery is not an error but a value (`core/outcome.py`): there is no class for it.
"""

from __future__ import annotations

from collections.abc import Sequence


class ReconsumeError(Exception):
    """The root: catching it catches everything that we raise on purpose. Its text is for people."""


class ConfigError(ReconsumeError):
    """A setting, an option or a file is wrong. `problems` holds one sentence for each fault found."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class SetupError(ReconsumeError):
    """The machine lacks something that we need: a program, a file from the network, a process that starts.

    `log`: the last lines of that process, which are shown below the sentence.
    """

    def __init__(self, text: str, log: str = "") -> None:
        self.log = log
        super().__init__(text)


class BrokerError(ReconsumeError):
    """Kafka is unreachable, or refuses a request."""


class ContractError(ReconsumeError):
    """A topic or a header does not follow the contract."""


class RecordError(ReconsumeError):
    """There is no such record, or it is not in a state for what was asked."""


class LetterError(RecordError):
    """There is no such dead letter, or it is not in a state for what was asked."""


class BusyError(ReconsumeError):
    """Too many calls of one kind are in progress. The caller may try again in some seconds."""
