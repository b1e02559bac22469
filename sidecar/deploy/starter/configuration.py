"""The answers of a new user, checked by the settings themselves, and the commented `reconsume.yaml` that says them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.group_policy import flow
from reconsume.sidecar.settings.load import STAND_INS, Layers, validate
from reconsume.sidecar.settings.model import ROWS, Settings
from reconsume.sidecar.settings.reference import MODELINE
from reconsume.sidecar.settings.yaml_text import read_yaml

SERVERS = ("kafka", "bootstrap.servers")
URL = ("deliver", "url")
SERVER = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
PULL, RELAY, SPARK = "pull", "relay", "spark"
SIDECARS = ("push", PULL, RELAY)
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """The values that only the user knows. An empty one is not given."""

    group: str = ""
    topics: tuple[str, ...] = ()
    servers: str = ""
    mode: str = "push"
    url: str = ""

    def values(self) -> dict[Path, Any]:
        """Return the given settings by their paths."""
        said: dict[Path, Any] = {
            ("group",): self.group,
            ("topics",): list(self.topics),
            SERVERS: self.servers,
            ("deliver", "mode"): self.mode,
            URL: self.url,
        }
        return {path: value for path, value in said.items() if value}


class Line(NamedTuple):
    """One key of the file and its comment.

    `modes`: the modes of delivery in which it is written, or all if empty. `example`: a value for a key that is written
    as a comment, because its default is another.
    """

    path: Path
    comment: str
    modes: Sequence[str] = ()
    example: str = ""


def answers_in(settings: Settings) -> Answers:
    """Return the answers that a configuration gives."""
    servers = str(settings.kafka["bootstrap.servers"])
    deliver = settings.deliver
    return Answers(settings.group, settings.topic_names, servers, deliver.mode, deliver.url or "")


LINES = (
    Line(("group",), "The service's consumer group. Its retry topics are named after it."),
    Line(("topics",), "The main topics that the service consumes."),
    Line(("start",), "Where a new group begins: earliest or latest.", ("push", PULL)),
    Line(("kafka",), "Any property of librdkafka. Keep passwords in files: `sasl.password.file: /run/password`."),
    Line(SERVERS, "The brokers: host:port, joined by commas."),
    Line(("deliver",), "How records reach the service."),
    Line(("deliver", "mode"), "The sidecar posts each record to the service.", ("push",)),
    Line(("deliver", "mode"), "The service asks the sidecar's API for records.", (PULL,)),
    Line(("deliver", "mode"), "The service reads Kafka itself, and posts its failures to the sidecar.", (RELAY,)),
    Line(("deliver", "mode"), "Spark queries consume the group; `rules_from` reads this file.", (SPARK,)),
    Line(
        URL,
        "The service's address. A 2xx response means done, any other a retry, except 429 and in an outage.",
        ("push",),
    ),
    Line(
        ("deliver", "concurrency"),
        "Requests in flight at most; auto follows the service.",
        ("push",),
    ),
    Line(("deliver", "timeout"), "How long one delivery may take; then it has failed.", ("push",)),
    Line(
        ("deliver", "dead_letter_statuses"),
        "Statuses with which a record goes to the DLQ at once, without a retry.",
        ("push",),
        "[400, 422]",
    ),
    Line(("retry",), "How often and when a failed record is delivered again."),
    Line(("retry", "max_reconsume_times"), "Retries after the first delivery; then the record goes to the DLQ."),
    Line(("retry", "ladder"), "The waits: rocketmq (10s to 2h), pulsar (1s to 30m), or a list like [10s, 1m, 1h]."),
    Line(("api",), "Where the sidecar itself listens.", SIDECARS),
    Line(("api", "listen"), "The API for the service next to it.", SIDECARS),
    Line(("api", "probe_listen"), "Probes and metrics for the kubelet and Prometheus.", SIDECARS),
    Line(("operators",), "Who may change the group by the API and the dashboard: hold, settle, redrive."),
    Line(
        ("operators", "token_file"),
        "The file with their tokens, which `reconsume init` wrote. Without it nobody may.",
        example="reconsume-operators.token",
    ),
    Line(("operators", "audit_file"), "A file with one line for each change.", example="reconsume-audit.jsonl"),
)
SECTIONS = frozenset(line.path[:-1] for line in LINES)
HEAD = f"""\
{MODELINE}# The configuration of Reconsume for the group {{group}}.
# Check it by `reconsume config check`. All settings: `reconsume config schema --markdown`.

"""


def faults_of(answers: Answers, *, partly: bool = False) -> list[str]:
    """Return a sentence for each wrong value, by the checks that a sidecar makes when it starts.

    `partly`: values that are not given yet are not missed.
    """
    tree: dict[str, Any] = {}
    for path, value in answers.values().items():
        section = tree
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
    if partly:
        tree = {**STAND_INS, **tree}
        if not answers.url and answers.mode == "push":
            tree["deliver"]["url"] = "http://127.0.0.1:1/"
    _, wrong = validate(tree)
    sentences = Layers().problems(wrong)
    if any(fault.path == SERVERS for fault in wrong):
        return sentences
    return [*sentences, *map(printable, wrong_servers(answers.servers))]


def wrong_servers(servers: str) -> Iterator[str]:
    """Yield a sentence if a broker is not host:port. The client itself accepts any text, and then finds no broker."""
    for server in servers.split(",") if servers else ():
        match = SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[1]) <= 65_535:
            yield f"kafka.bootstrap.servers = {server[:60]}: must be host:port of one or more brokers, joined by commas"


def configuration(answers: Answers) -> str:
    """Return the text of `reconsume.yaml`: the answers, and the usual settings with their defaults.

    Raises ValueError if the text does not say the answers. They must be without faults.
    """
    values = answers.values()
    lines = [line for line in LINES if not line.modes or answers.mode in line.modes]
    text = HEAD.format(group=answers.group) + "".join(rendered(line, values) for line in lines)
    document = read_yaml(text)
    sections = document.value if isinstance(document.value, dict) else {}
    # A section of comments alone is null, and sets nothing.
    if document.faults or validate({name: value for name, value in sections.items() if value is not None})[1]:
        raise ValueError("the file would not say the answers")
    return text


def rendered(line: Line, values: Mapping[Path, Any]) -> str:
    """Return the comment and the key. A default comes from the settings, so that the file cannot contradict them."""
    indent = "  " * (len(line.path) - 1)
    key = f"{indent}# {line.comment}\n{indent}{line.path[-1]}:"
    if line.example:
        return f"{indent}# {line.comment}\n{indent}# {line.path[-1]}: {line.example}\n"
    if line.path in SECTIONS:
        return f"{key}\n"
    row = ROWS.get(line.path)
    value = values[line.path] if line.path in values or row is None else row.default
    return f"{key} {flow(value)}\n"
