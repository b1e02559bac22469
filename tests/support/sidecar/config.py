"""The configuration of a test's sidecar: short levels and timeouts, and what the test changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.kafka.broker import group_protocol
from tests.support.kafka.group_topics import GroupTopics

CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
Config = Mapping[str, Any]


def config_of(group: GroupTopics, url: str, port: int, overrides: Config | None = None) -> dict[str, Any]:
    """The configuration of a test's sidecar: a short ladder, short timeouts, and what `overrides` change."""
    mode = (overrides or {}).get("deliver", {}).get("mode", "push")
    # Scripts that fail everything are the rule here; what an outage is has its own tests.
    requests = {"url": url, "timeout": "5s", "concurrency": 64, "outage_failures": None}
    base: dict[str, Any] = {
        "group": group.group,
        "topics": list(group.mains),
        "topic_prefix": group.template,
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": requests if mode == "push" else {},
        "retry": {
            "ladder": ["1s", "2s"],
            "levels": [f"{delay}ms" for delay in group.delays] or None,
            "max_reconsume_times": 2,
        },
        "api": {"listen": f"127.0.0.1:{port}", "probe_listen": None},
        "drain_timeout": "10s",
        "lock_timeout": "5s",
        "log": {"format": "text"},
    }
    return by_protocol(_merged(base, overrides or {}), group_protocol())


OPERATOR = "an-operators-token-for-tests"
"""The token of an operator of a test's sidecar, with the name `ops`."""
AS_OPERATOR = {"Authorization": f"Bearer {OPERATOR}"}


def with_operators(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration with a file of operators' tokens, unless it has one, or a dashboard, which needs more."""
    if "operators" in config or config.get("ui"):
        return config
    file = folder / "operators"
    file.write_text(f"ops: {OPERATOR}\n", encoding="utf-8")
    return {**config, "operators": {"token_file": str(file)}}


def by_protocol(config: dict[str, Any], protocol: str) -> dict[str, Any]:
    """The configuration for a group of this protocol; of the newer one the times are the broker's to say."""
    if protocol == "classic":
        return config
    kafka = {name: value for name, value in config["kafka"].items() if name not in CLASSIC_ONLY}
    return {**config, "kafka": {"group.protocol": protocol, **kafka}}


def _merged(base: dict[str, Any], overrides: Config) -> dict[str, Any]:
    merged = dict(base)
    for name, value in overrides.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged
