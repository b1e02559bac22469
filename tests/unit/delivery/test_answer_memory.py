"""A large JSON answer takes a few times its size, whatever it is made of (contract 13.3)."""

from __future__ import annotations

import tracemalloc

import pytest

from reconsume.sidecar.delivery.push.batch_verdicts import read_answer
from reconsume.sidecar.delivery.verdict import VerdictRules
from reconsume.sidecar.deploy.container import ANSWER_TIMES
from reconsume.topics.outputs import AllowedOutputs

SIZE = 4 << 20
RULES = VerdictRules(outputs=AllowedOutputs(("invoices",)), longest_body=2 * SIZE)


def filled(before: bytes, item: bytes, after: bytes) -> bytes:
    return before + b",".join([item] * (SIZE // (len(item) + 1))) + after


ANSWERS = {
    "another field of empty lists": filled(b'{"verdict":"commit","x":[', b"[]", b"]}"),
    "a reason of lists": filled(b'{"verdict":"retry","reason":[', b"[]", b"]}"),
    "a delay of digits": b'{"verdict":"retry","delay":' + b"1" * SIZE + b"}",
    "a long reason": b'{"verdict":"retry","reason":"' + "😀".encode() + b"x" * SIZE + b'"}',
    "small records": filled(b'{"verdict":"commit","produce":[', b'{"topic":"invoices"}', b"]}"),
    "small headers": filled(b'{"verdict":"commit","produce":[{"topic":"invoices","headers":[', b'["",""]', b"]}]}"),
    "numbers as records": filled(b'{"verdict":"commit","produce":[', b"0", b"]}"),
    "a value of empty lists": filled(b'{"verdict":"commit","produce":[{"topic":"invoices","json":[', b"[]", b"]}]}"),
    "a list of verdicts": filled(b'{"verdicts":[', b'{"id":"a"}', b"]}"),
    "a list of empty verdicts": filled(b'{"verdicts":[', b"{}", b"]}"),
    "a list of numbers": filled(b'{"verdicts":[', b"0", b"]}"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_no_answer_becomes_many_times_its_size(kind: str) -> None:
    body = ANSWERS[kind]
    tracemalloc.start()
    try:
        read_answer(["orders:0:1"], 200, [(b"content-type", b"application/json")], body, RULES, 0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < ANSWER_TIMES * len(body), f"{most / len(body):.1f} times"
