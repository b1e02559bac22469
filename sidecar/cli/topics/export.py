"""The group's topics for other tools: as commands of kafka-topics.sh, and as resources of Terraform. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping

from reconsume.topics.specs import TopicSpec


def commands(bootstrap: str, specs: Iterable[TopicSpec]) -> Iterator[str]:
    """Yield the kafka-topics.sh commands that create the topics, one for each. What exists is left as it is."""
    for spec in specs:
        head = ["kafka-topics.sh", "--bootstrap-server", bootstrap, "--create", "--if-not-exists", "--topic", spec.name]
        shape = ["--partitions", str(spec.partitions), "--replication-factor", str(spec.replication)]
        config = [word for key, value in spec.config.items() for word in ("--config", f"{key}={value}")]
        yield shlex.join([*head, *shape, *config])


def terraform(specs: Iterable[TopicSpec]) -> Iterator[str]:
    """Yield a `kafka_topic` of the provider Mongey/kafka for each topic."""
    for spec in specs:
        yield (
            f'resource "kafka_topic" {json.dumps(label(spec.name))} {{\n'
            f"  name               = {quoted(spec.name)}\n"
            f"  partitions         = {spec.partitions}\n"
            f"  replication_factor = {spec.replication}\n"
            f"{block(spec.config)}}}\n"
        )


def label(name: str) -> str:
    """Return the name of a resource: a dot is not allowed there, and no topic name begins otherwise than a label may.

    Two topics whose names differ by dots alone are refused by Kafka's metrics as well.
    """
    spelled = name.replace(".", "_")
    return spelled if spelled[0].isalpha() or spelled[0] == "_" else f"_{spelled}"


def block(config: Mapping[str, str]) -> str:
    """Return the settings of a topic as a map."""
    if not config:
        return ""
    width = max(len(json.dumps(key)) for key in config)
    lines = "".join(f"    {json.dumps(key):{width}} = {quoted(value)}\n" for key, value in config.items())
    return f"  config = {{\n{lines}  }}\n"


def quoted(text: str) -> str:
    """Return a string as HCL has it: `${` and `%{` would begin a template."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")
