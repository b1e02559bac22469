"""The setting `labels`: who a group belongs to, as short texts that its metrics, heartbeats and pages carry.

A name becomes a label of Prometheus and of `reconsume_info`, so it has that form, and the names that the metric
already has are refused. The values are in each heartbeat, which every instance of the group reads, so all of them
together are bounded. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from reconsume.sidecar.settings.table import Fault, Kind, RefusedError, expect_visible
from reconsume.topics.policy_record import LONGEST_LABEL, LONGEST_LABEL_NAME, MOST_LABELS

TAKEN = ("group", "version", "mode", "instance")
"""Names that say something else on the same series."""
MOST_BYTES = 512
"""Of all names and values together, as UTF-8."""
ALLOWED = f"a mapping of at most {MOST_LABELS} names to texts, like {{team: payments, channel: '#payments'}}"
NAME_PATTERN = f"[a-z][a-z0-9_]{{0,{LONGEST_LABEL_NAME - 1}}}"
NAME = re.compile(NAME_PATTERN)


Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order of the file."""


def read_labels(value: object) -> Labels:
    """Return the labels of a mapping in YAML. Raises ValueError, with a fault for each label that is refused."""
    if not isinstance(value, Mapping) or len(value) > MOST_LABELS:
        raise ValueError(f"must be {ALLOWED}")
    faults = [Fault((str(name),), text, one) for name, one in value.items() if (text := fault_of(name, one))]
    if faults:
        raise RefusedError(faults, rest=())
    if (size := sum(len(name.encode()) + len(one.encode()) for name, one in value.items())) > MOST_BYTES:
        raise ValueError(f"has {size} bytes of names and values; at most {MOST_BYTES} fit into a heartbeat")
    return tuple(value.items())


def fault_of(name: object, value: object) -> str:
    """Return what is wrong with one label; an empty text if nothing is."""
    if name in TAKEN:
        return f"the name is taken: the metrics have a label {name} of their own"
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        letters = f"a-z, 0-9 and _, at most {LONGEST_LABEL_NAME} of them, the first a letter"
        return f"the name must have {letters}, because it is a label of the metrics"
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_LABEL:
        return f"must be a text of 1 to {LONGEST_LABEL} characters; write it in quotes if it is meant as text"
    try:
        expect_visible(value)
    except ValueError as refused:
        return str(refused)
    return ""


LABELS = Kind(
    read_labels,
    ALLOWED,
    {
        "type": "object",
        "maxProperties": MOST_LABELS,
        "propertyNames": {"pattern": f"^(?!(?:{'|'.join(TAKEN)})$){NAME_PATTERN}$"},
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": LONGEST_LABEL},
    },
    dict,
)
