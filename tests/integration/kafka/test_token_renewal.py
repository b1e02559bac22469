"""A client that logs in by OAUTHBEARER fetches its next token while the last one is still good."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer

from reconsume.sidecar.settings.kafka import Kafka
from tests.integration.kafka.token_server import token_server
from tests.support.canary import CANARY
from tests.support.deadline import until

LIFE = 6
"""Seconds for which a token is good."""


def test_a_token_is_renewed_before_it_expires(tmp_path: Path) -> None:
    """Given no broker at all, then tokens come all the same, each before the end of the one before."""
    (tmp_path / "password").write_text(CANARY)
    with token_server(CANARY, LIFE) as tokens:
        kafka = Kafka(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": tokens.url,
                "sasl.oauthbearer.client.id": "sidecar",
                "sasl.oauthbearer.client.secret.file": str(tmp_path / "password"),
            }
        )
        consumer = Consumer({**kafka, "group.id": "renewal", "log_level": 0})
        moments: list[float] = []

        def renewed() -> bool:
            consumer.poll(0.05)
            moments.extend([time.monotonic()] * (len(tokens.grants) - len(moments)))
            return len(moments) >= 3

        until(renewed, 4 * LIFE, "the token was renewed twice")
        consumer.close()
    assert all(later - before < LIFE for before, later in pairwise(moments))
