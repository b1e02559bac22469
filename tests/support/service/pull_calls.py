"""What every refusal of a pull call has."""

from __future__ import annotations

from reconsume.sidecar.core.record import Partition
from tests.support.sidecar.running_api import Answer

OTHER = Partition("orders", 1)
GARBAGE = "h1-garbage"


def assert_refused(answer: Answer, status: int, sentence: str = "") -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert sentence in answer.json["detail"], answer
    assert answer.json["detail"].endswith(".")
