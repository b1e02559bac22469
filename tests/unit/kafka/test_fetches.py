"""How much is fetched at a time: little where any producer may write, and enough where transactions do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer

from reconsume.sidecar.kafka.client_config import (
    LITTLE,
    WHOLE,
    WHOLES,
    Config,
    consumer_config,
    fetches_whole,
    follower_config,
    reader_config,
    view_config,
    whole_fetches,
)

SERVERS = {"bootstrap.servers": "127.0.0.1:9"}
USERS: dict[str, dict[str, str]] = {
    "nothing": {},
    "less": {"fetch.message.max.bytes": "1000"},
    "less by the other name": {"max.partition.fetch.bytes": "1000"},
    "less in all": {"fetch.max.bytes": "500000", "receive.message.max.bytes": "600000"},
    "more": {"fetch.message.max.bytes": "3000000", "fetch.max.bytes": "9000000"},
    "more by the other name": {"max.partition.fetch.bytes": "3000000"},
}


def configs(user: Mapping[str, str]) -> dict[str, Config]:
    """The configuration of a lane that reads the group's own topics, and of what reads on behind a gap."""
    given = SERVERS | user
    return {
        "lane": consumer_config(given, "g", "c", own=True),
        "follower": whole_fetches(follower_config(given, "g", "c")),
        "view": whole_fetches(view_config(given, "g", "c")),
        "reader": whole_fetches(reader_config(given, "g", "c")),
    }


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_where_transactions_write_at_least_a_whole_replica_fetch_is_fetched(user: dict[str, str]) -> None:
    for config in configs(user).values():
        most, total = int(str(config["fetch.message.max.bytes"])), int(str(config["fetch.max.bytes"]))
        assert most >= WHOLE
        assert total >= WHOLES
        assert most == 3_000_000 or "3000000" not in user.values()
        Consumer(config).close()


def test_where_any_producer_may_write_little_is_fetched_unless_the_user_wants_more() -> None:
    config = consumer_config(SERVERS, "g", "c")
    assert config["fetch.message.max.bytes"] == LITTLE
    assert not fetches_whole(config)
    for name in ("fetch.message.max.bytes", "max.partition.fetch.bytes"):
        wanted = consumer_config(SERVERS | {name: "1048576"}, "g", "c")
        assert fetches_whole(wanted), "all that is fetched at a time follows, if nothing is said of it"
        assert not fetches_whole(consumer_config(SERVERS | {name: "1048576", "fetch.max.bytes": "9000"}, "g", "c"))
