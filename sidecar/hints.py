"""The commands and names that our texts recommend: `reconsume topics apply -c billing.yaml`, `did you mean orders?`

A recommended command must mean the same configuration as the one that recommends it. Without its `-c` and `--set` it
would read another file, or ask another Kafka. So every text that names a command, in an error, a log line, a check of
`doctor` or a row, gets it from `hint`; a test finds the texts that do not.

The command line calls `use_given` once, before a command runs. Texts are made on any thread later.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

PRESENT_GROUP: ContextVar[str | None] = ContextVar("reconsume.group", default=None)
"""The group that the running code is about, in a process that has several: the pages of many groups, and a sidecar of
several. Tasks and timers inherit it, and so do threads of `ContextThread`. None where there is one group."""


class _CommandLine:
    """What the running command was called with."""

    files: tuple[Path, ...] = ()
    sets: tuple[str, ...] = ()
    group: str | None = None
    file_of: Mapping[str, Path] = MappingProxyType({})


def use_given(files: Iterable[Path] = (), sets: Iterable[str] = (), group: str | None = None) -> None:
    """Let hints name this configuration. `files`: each `-c`. `sets`: each `--set`, without secrets. `group`: that of
    `--group`."""
    _CommandLine.files, _CommandLine.sets, _CommandLine.group = tuple(files), tuple(sets), group
    _CommandLine.file_of = MappingProxyType({})


def use_file_of(file_of: Mapping[str, Path]) -> None:
    """Let hints about a group name its file alone. `file_of`: the file of each group of several `-c`."""
    _CommandLine.file_of = dict(file_of)


def hint(command: str, file: Path | None = None) -> str:
    """Return a command to type, as `hint("topics apply")`. `file`: its whole configuration, if not that of this
    command. A key that the command sets itself is not set again."""
    files, sets, group = _CommandLine.files, _CommandLine.sets, PRESENT_GROUP.get() or _CommandLine.group
    if file is not None:
        files, sets, group = (file,), (), None
    elif group is not None and group in _CommandLine.file_of:
        files, group = (_CommandLine.file_of[group],), None
    of_group = () if group is None else ("--group", group)
    own = {word.partition("=")[0] for word in shlex.split(command)} if "--set" in command else ()
    words = [*of_group, *(word for one in sets if one.partition("=")[0] not in own for word in ("--set", one))]
    return (
        f"reconsume {command}"
        + "".join(f" -c {shlex.quote(str(one))}" for one in files)
        + (f" {shlex.join(words)}" if words else "")
    )


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a question that suggests the most similar known name; empty if none is similar."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def not_ours(topic: str, mains: Sequence[str]) -> str:
    """Return the sentence about a topic that is not one of the group's main topics `mains`."""
    question = suggestion(topic, mains)
    return f"{topic!r} is none of the group's topics: {', '.join(mains)}" + (f"; {question}" if question else "")


ABSENT = "missing, or not for this user to see"
"""What is known of a topic that Kafka does not show: it answers UNKNOWN_TOPIC_OR_PARTITION for both."""


def absent(topics: Iterable[str]) -> str:
    """Return the sentence about our topics that Kafka does not show, with the command that creates them."""
    return f"{', '.join(sorted(topics))}: {ABSENT}; `{hint('topics apply')}` creates what is missing"
