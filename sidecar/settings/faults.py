"""Turn faults into sentences: the key, the value, what is allowed, and where the value came from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.fields import allowed, field_at, member_of, siblings
from reconsume.sidecar.settings.layers import Layers
from reconsume.sidecar.settings.masks import masked
from reconsume.sidecar.settings.sections.kafka import FIXED
from reconsume.sidecar.settings.values import KeyPath, RefusedError
from reconsume.sidecar.settings.yaml_text import dotted

LONGEST_SHOWN = 60
RENAMED = {"ui.token_file": "operators.token_file", "ui.audit_file": "operators.audit_file"}
"""Names that a setting had, and the one that it has."""
KAFKA_PROPERTIES = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
"""Properties that are suggested for similar names."""
OTHER_KIND = re.compile(r"[-+]?[0-9.]+|true|false|null|yes|no|on|off|~|", re.I)


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong setting. `has_value`: whether there is a value to show."""

    path: KeyPath
    text: str
    value: object = None
    has_value: bool = True


def faults_of(errors: Iterable[Any]) -> Iterator[Fault]:
    """Yield our faults for pydantic's error details, each with one sentence."""
    listed = list(errors)
    for error in listed:
        path: KeyPath = tuple(error["loc"])
        if any(path == tuple(other["loc"])[: len(path)] and len(other["loc"]) > len(path) for other in listed):
            continue  # pydantic also reports a list as too short if its items are wrong
        raised = error.get("ctx", {}).get("error")
        match error["type"]:
            case "missing":
                yield Fault(path, "is required", has_value=False)
            case "extra_forbidden":
                yield Fault(path, unknown(path), has_value=False)
            case "value_error" if isinstance(raised, RefusedError):
                yield from inner_faults(path, error["input"], raised)
            case "value_error":
                yield Fault(path, str(raised), error["input"])
            case _:
                yield Fault(path, must_be(path), error["input"])


def inner_faults(path: KeyPath, value: object, raised: RefusedError) -> Iterator[Fault]:
    """Yield one fault for each refused part of a value."""
    for below, text in raised.parts:
        inner = value
        try:
            for step in below:
                inner = inner[step]  # type: ignore[index]  # any value from YAML; the except is the check
        except (KeyError, IndexError, TypeError):
            yield Fault((*path, *below), text, has_value=False)
        else:
            yield Fault((*path, *below), text, inner, has_value=text != "unknown key")


def must_be(path: KeyPath) -> str:
    """Return the sentence about the values that the setting at `path` accepts."""
    field = field_at(path)
    within = next((number for number, step in enumerate(path) if isinstance(step, int)), None)
    if field is None or (path[0] == "topics" and within is not None and len(path) == within + 1):
        return "must be a topic's name or {name, …}"
    if within is None:
        return f"must be {allowed(field)}"
    member, key = member_of(field), path[within + 1 : within + 2]
    known = {} if member is None else member.model_fields
    return f"must be {allowed(known[str(key[0])])}" if key and key[0] in known else f"must be {{{', '.join(known)}}}"


def unknown(path: KeyPath) -> str:
    """Return the sentence about an unknown key, with the most similar known key."""
    if (newer := RENAMED.get(dotted(path))) is not None:
        return f"is {newer} now"
    name, known = str(path[-1]), siblings(path)
    if path[0] == "topics" and len(path) > 1 and name == "order":
        return "a group has one order for all its topics: give this topic a group of its own, with its deliver.order"
    if close := most_similar(name, known):
        return f"unknown key; did you mean {dotted((*path[:-1], close))}?"
    # `--set bootstrap.server=…` has given the key `bootstrap`.
    begun = next((known for known in KAFKA_PROPERTIES if known.startswith(f"{name}.")), None)
    if len(path) == 1 and ("." in name or name in FIXED or begun is not None):
        intended = begun or most_similar(name, KAFKA_PROPERTIES) or name
        return f"unknown key; properties of librdkafka go under kafka, like kafka.{intended}"
    return f"unknown key; known here: {', '.join(known)}"


def most_similar(name: str, known: Sequence[str]) -> str | None:
    """Return the known key that a mistyped one is most likely meant to be; None if none is similar.

    A key that has all its words comes first (`max_times`: max_reconsume_times, which also begins with the same word);
    otherwise the letters decide.
    """
    words = name.split("_")
    candidates = [key for key in known if set(words) <= set(key.split("_"))]
    if candidates:
        return min(candidates, key=lambda key: (key.split("_")[0] != words[0], len(key)))
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def sentence(fault: Fault, layers: Layers) -> str:
    """Return the fault as a sentence for people, without any secret, and with escapes for what is not printable."""
    origin = layers.origin(fault.path)
    whence = f" ({origin})" if origin is not None else ""
    return printable(f"{dotted(fault.path)}{shown(fault)}: {fault.text}{whence}")


def plain(value: object) -> str:
    """Return a value as YAML writes it. A text that YAML could read as a number or as true is quoted."""
    if isinstance(value, str):
        return f'"{value}"' if OTHER_KIND.fullmatch(value) else value
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def shown(fault: Fault) -> str:
    """Return ` = value`, cut to one line and masked.

    Empty if there is no value, or if the value could hold a secret.
    """
    if not fault.has_value or fault.path == ("kafka",):
        return ""
    value = masked(fault.path, fault.value)
    if isinstance(value, dict):
        return " = {…}"
    line = " ".join(plain(value).split())
    return f" = {line[:LONGEST_SHOWN]}…" if len(line) > LONGEST_SHOWN else f" = {line}"
