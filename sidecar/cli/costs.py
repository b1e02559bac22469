"""What a group's topics follow from, and what they and its rights and pods cost a cluster.

The main topics say how many partitions and replicas the group's own topics have. They are read from Kafka
(`main_topics`), or described by options, so that nothing is asked (`sources_given`). `topics plan` shows the cost of
one group (`cost_of`), or of all groups whose configurations are in a folder (`costs_in`). Every figure is counted in
the lists that `topics apply` and `acls apply` carry out: `specs_of`, and `rights_needed` of `acls`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from reconsume.sidecar.cli.acls import rights_needed, shape_on
from reconsume.sidecar.cli.exports import kafka_tool
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.deploy.annotations import millicores
from reconsume.sidecar.deploy.container import REQUEST_MIB, USUAL_CPU, memory_limit
from reconsume.sidecar.errors import ConfigError, ContractError
from reconsume.sidecar.files import read_given
from reconsume.sidecar.hints import suggestion
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.load import LONGEST
from reconsume.sidecar.settings.model import group_of
from reconsume.sidecar.settings.yaml_text import read_yaml
from reconsume.topics.acls import GroupShape
from reconsume.topics.levels import hop_count
from reconsume.topics.specs import Source, TopicSpec, group_specs

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.cluster import Cluster

USUAL_REPLICAS = 3
USUAL_PODS = 3
MOST_GIVEN = 100_000
"""Partitions of a main topic that an option may give."""
PartitionsGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--partitions",
        metavar="TOPIC=N,…",
        help="The partitions of the main topics, so that Kafka is not asked; may be repeated.",
    ),
]
ReplicasGiven = Annotated[
    int | None,
    typer.Option(
        "--replicas", min=1, max=100, help="With --partitions: the replicas of the main topics; 3 by default."
    ),
]


def main_topics(cluster: Cluster, settings: Settings) -> list[Source]:
    """Return the main topics as they are. Raises ContractError if one is missing."""
    from reconsume.sidecar.kafka.admin.descriptions import source_of

    mains = cluster.find_topics(settings.topic_names)
    if absent := [name for name in settings.topic_names if name not in mains]:
        there = cluster.topic_names()
        questions = {name: suggestion(name, there) for name in absent}
        named = ", ".join(f"{name} ({question})" if question else name for name, question in questions.items())
        raise ContractError(
            f"no such main topic: {named}; create it first, since the group's own topics follow the main "
            f"topics' partitions, replicas and sizes, for example by `{creating(settings, absent)}`"
        )
    return [source_of(mains[name]) for name in settings.topic_names]


def specs_of(settings: Settings, sources: Sequence[Source]) -> tuple[TopicSpec, ...]:
    """Return the topics that the configuration needs, for main topics like these."""
    if settings.deliver.broadcast:  # which retries nothing and belongs to no consumer group
        return ()
    rows = settings.view.source == "spark"
    return group_specs(settings.names, sources, settings.delays, rows=rows, ordered=settings.queued)


def counts_given(texts: Sequence[str] | None, replicas: int | None) -> dict[str, int] | None:
    """Return the partitions of main topics that `--partitions` gives; None if it is not given.

    Raises BadParameter for what is not TOPIC=NUMBER, for a topic that is given twice, and for --replicas alone.
    """
    if texts is None:
        if replicas is not None:
            raise typer.BadParameter("--replicas goes with --partitions; without it Kafka is asked for both")
        return None
    counts: dict[str, int] = {}
    for text in map(str.strip, ",".join(texts).split(",")):
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or not 1 <= int(number) <= MOST_GIVEN:
            raise typer.BadParameter(f"--partitions {printable(text[:60])}: must be TOPIC=NUMBER, like orders=12")
        if name in counts:
            raise typer.BadParameter(f"--partitions gives {name} more than once: {counts[name]} and {number}")
        counts[name] = int(number)
    return counts


def sources_given(settings: Settings, counts: Mapping[str, int], replicas: int | None) -> list[Source]:
    """Return the main topics as the options describe them. Raises BadParameter if one of them is not given.

    What no option says is Kafka's default, but for `min.insync.replicas`: two of three or more, which is never less
    safe than the main topic in a usual cluster.
    """
    from reconsume.sidecar.kafka.admin.descriptions import KAFKA_LIMIT

    if absent := [name for name in settings.topic_names if name not in counts]:
        raise typer.BadParameter(f"--partitions lacks {', '.join(absent)}: give it for each main topic")
    copies = USUAL_REPLICAS if replicas is None else replicas
    in_sync = 2 if copies > 2 else 1
    return [Source(name, counts[name], copies, KAFKA_LIMIT, in_sync) for name in settings.topic_names]


def expect_all_used(counts: Mapping[str, int], names: Collection[str]) -> None:
    """Raise BadParameter if `--partitions` names what is no main topic."""
    if unknown := [name for name in counts if name not in names]:
        raise typer.BadParameter(
            f"--partitions names {', '.join(unknown)}, which is no main topic of the configuration"
        )


def creating(settings: Settings, names: Sequence[str]) -> str:
    """Return a command that creates main topics, with three partitions and the cluster's own number of replicas."""
    create = [*kafka_tool("kafka-topics.sh", settings.kafka["bootstrap.servers"]), "--create"]
    return " && ".join(shlex.join([*create, "--topic", name, "--partitions", "3"]) for name in names)


class GroupCost(NamedTuple):
    """What one group costs a cluster. `memory_mib`: the limit of one pod's sidecar."""

    file: Path
    settings: Settings
    specs: tuple[TopicSpec, ...]
    rights: int
    pods: int

    @property
    def counts(self) -> dict[str, int]:
        """What is added up, by its noun."""
        return {**counts_of(self.specs, self.rights), "pod": self.pods}

    @property
    def memory_mib(self) -> int:
        """The memory limit of all its sidecars."""
        deliver = self.settings.deliver
        return self.pods * memory_limit(deliver.buffer_memory, deliver.most_requests, deliver.max_answer)

    @property
    def row(self) -> Row:
        """The group as a row of plain values."""
        counts = {f"{noun}s": count for noun, count in self.counts.items()}
        copies = {"copies": copies_of(self.settings), "memory_limit": f"{self.memory_mib}Mi"}
        return {"group": self.settings.group, "file": str(self.file), **counts, **copies}


def counts_of(specs: Sequence[TopicSpec], rights: int) -> dict[str, int]:
    """Return the number of topics, partitions, replicas and rights."""
    return {
        "topic": len(specs),
        "partition": sum(spec.partitions for spec in specs),
        "replica": sum(spec.partitions * spec.replication for spec in specs),
        "right": rights,
    }


def costs_in(
    options: Options, folder: Path, counts: Mapping[str, int] | None, replicas: int | None, pods: int
) -> list[GroupCost]:
    """Return what each group costs whose configuration is in the folder.

    A file without `group` is a base, or no configuration. `counts`: the partitions of the main topics; None: Kafka is
    asked. Raises ConfigError and ContractError.
    """
    from reconsume.sidecar.kafka.admin.cluster import Cluster  # slow to import, and --help needs none

    documents = {file: read_yaml(text_of(file)) for file in sorted(folder.glob("*.y*ml"))}
    for file in [file for file, document in documents.items() if document.faults]:
        talk(f"warning: {printable(str(file))} is passed over: {documents[file].faults[0]}")
    files = [file for file, document in documents.items() if ("group",) in document.lines and not document.faults]
    faults, costs = list[str](), list[GroupCost]()
    clusters: dict[str, Cluster] = {}
    owners: dict[str, Path] = {}
    for file in files:
        try:
            settings = load(file, options.sets)
        except ConfigError as refused:
            faults += [f"{printable(str(file))}: {problem}" for problem in refused.problems]
            continue
        if (other := owners.setdefault(settings.group, file)) != file:
            faults.append(f"{printable(str(file))}: its group {settings.group} is that of {printable(str(other))}, too")
        if counts is None:
            cluster = clusters.setdefault(str(sorted(settings.kafka.properties.items())), Cluster(settings.kafka))
            sources, shape = main_topics(cluster, settings), shape_on(cluster.topic_names(), settings)
        else:
            sources, shape = sources_given(settings, counts, replicas), group_of(settings)
        costs.append(GroupCost(file, settings, specs_of(settings, sources), rights_needed(shape), pods))
    if not files:
        faults.append(f"{printable(str(folder))}: no file *.yaml in it names a group")
    if faults:
        raise ConfigError(faults)
    if counts is not None:
        expect_all_used(counts, [name for cost in costs for name in cost.settings.topic_names])
    return costs


def text_of(file: Path) -> str:
    """Return the text of a file of the folder; empty if it cannot be read as one, for it is no configuration then."""
    try:
        return read_given(file, LONGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def total_of(costs: Sequence[GroupCost]) -> str:
    """Return the sum of what groups cost, with what their pods request, as `inject` writes it."""
    sums = {noun: sum(cost.counts[noun] for cost in costs) for noun in costs[0].counts}
    millis, mib = sums["pod"] * millicores(USUAL_CPU), sums["pod"] * REQUEST_MIB
    limit = sum(cost.memory_mib for cost in costs)
    pods = f"request {millis / 1000:g} cores and {mib / 1024:.1f} GiB, with memory limits of {limit / 1024:.1f} GiB"
    return f"{', '.join(plural(count, noun) for noun, count in sums.items())}; the pods' sidecars {pods}"


def cost_of(settings: Settings, specs: Sequence[TopicSpec], group: GroupShape) -> str:
    """Return a sentence on the number of topics, partitions, replicas and rights, and on the copies that a record costs
    which uses up its retries. `group`: what the rights follow from."""
    one = ", ".join(plural(count, name) for name, count in counts_of(specs, rights_needed(group)).items())
    copies = f"a record that uses up its retries is copied {plural(copies_of(settings), 'time')}"
    return f"cost: {one}; {copies}"


def copies_of(settings: Settings) -> int:
    """Return how often a record is copied that uses up its retries: its hops, without the dead letter."""
    if settings.deliver.broadcast or (settings.order_by is not None and not settings.queued):
        return 0
    times = settings.retry.max_reconsume_times
    if settings.queued:
        return times
    forwards = 1 if settings.deliver.mode == "relay" else 0
    waits = map(settings.ladder.delay, range(1, times + 1))
    return sum(hop_count(wait, settings.delays) + forwards for wait in waits)
