"""Make Kafka clients, none of them with a property that brings code along (contract 14.6). Pure.

Sidecar, commands and Spark jobs make every consumer, producer and admin client by `checked_client`, and name the
class, so that this file needs no client library. The settings refuse the same properties earlier, with their place in
the file. But a property may also come from an option of a Spark source, and no further source must need a check of its
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

LIBRARY = "it loads a library; whoever may write a configuration may not bring code along"
COMMAND = "it is a shell command; whoever may write a configuration may not bring code along"
NATIVE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plugin.library.paths": (LIBRARY, ()),
    "ssl.engine.location": (LIBRARY, ()),
    "ssl.engine.id": (LIBRARY, ()),
    "ssl.providers": (LIBRARY, ("default", "default,legacy", "legacy,default", "fips,base", "base,fips")),
    "sasl.kerberos.kinit.cmd": (COMMAND, ()),
}
"""Properties that load a library or run a command: why they are refused, and the values that are harmless."""
IN_COMMAND = frozenset({"sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name"})
"""Properties that librdkafka inserts unchanged into the command `kinit`, which a shell runs."""
PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./@:+-]*")
NESTED = "default.topic.config"
"""A property of the Python client whose value is a mapping of further properties."""

C = TypeVar("C")


class UnsafePropertyError(ValueError):
    """A property of a Kafka client that would load a library, run a command or become part of one."""


def property_fault(name: str, value: object) -> str:
    """Return why a client may not have a property with this value; empty if it may."""
    plain = name.strip().lower()
    if plain in NATIVE:
        why, harmless = NATIVE[plain]
        return "" if str(value).lower() in harmless else f"cannot be set: {why}"
    if plain in IN_COMMAND and PLAIN.fullmatch(str(value)) is None:
        return "may have letters, digits and _./@:+- alone: a shell reads it"
    return ""


def check_properties(config: Mapping[str, object]) -> None:
    """Raise UnsafePropertyError for the first property that brings code along."""
    for name, value in config.items():
        if name.strip().lower() == NESTED and isinstance(value, Mapping):
            check_properties(value)
        elif why := property_fault(name, value):
            raise UnsafePropertyError(f"{name}: {why}")


def checked_client(client_class: Callable[[dict[str, Any]], C], config: Mapping[str, object]) -> C:
    """Return a consumer, producer or admin client with these properties of librdkafka.

    Raises UnsafePropertyError, and whatever the class raises (KafkaException).
    """
    check_properties(config)
    return client_class(dict(config))
