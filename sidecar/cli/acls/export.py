"""Rights for other tools: as kafka-acls.sh commands, and the names of Strimzi users. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from reconsume.sidecar.cli.acls.strimzi import by_resource, camel, resource_name
from reconsume.topics.acls import Permission, Resource

FLAGS = {Resource.TOPIC: "--topic", Resource.GROUP: "--group", Resource.TRANSACTIONAL_ID: "--transactional-id"}


def commands(bootstrap: str, principal: str, rights: tuple[Permission, ...]) -> Iterator[str]:
    """Yield the kafka-acls.sh commands that give a principal its rights, one for each resource."""
    head = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
    for same in by_resource(rights):
        first = same[0]
        operations = [word for right in same for word in ("--operation", camel(right.operation))]
        flags = [FLAGS[first.resource], first.name]
        pattern = ["--resource-pattern-type", "prefixed" if first.prefixed else "literal"]
        yield shlex.join([*head, *operations, *flags, *pattern])


def user_name(principal: str) -> str:
    """Return the name of the Strimzi resource that creates a principal."""
    return resource_name(principal.partition(":")[2].removeprefix("CN="))
