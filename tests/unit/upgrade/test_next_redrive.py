"""Progress of redrives that the next version may write: a claim that is half understood would skip letters for ever."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from reconsume.sidecar.dlq.letters import Filter
from reconsume.sidecar.dlq.redrive_history import (
    TAG,
    NewerPast,
    RedriveHistory,
    RedrivenRange,
    decode_past,
    encode_past,
)

PAST = RedriveHistory("id", 5, (RedrivenRange(Filter(reasons=("http-500",)), 30, ("orders",)),), frozenset({3}))


def packed(stored: object, tag: str = TAG) -> str:
    return tag + base64.b85encode(zlib.compress(json.dumps(stored).encode(), 9)).decode()


def stored() -> list[Any]:
    found: list[Any] = json.loads(zlib.decompress(base64.b85decode(encode_past(PAST)[len(TAG) :])))
    return found


def test_packed_here_it_is_the_same() -> None:
    assert decode_past(packed(stored())) == PAST


def narrower(past: list[Any]) -> list[Any]:
    past[2][0][0]["z"] = ["only these"]
    return past


def longer_claim(past: list[Any]) -> list[Any]:
    past[2][0] = [*past[2][0], [], "more"]
    return past


@pytest.mark.parametrize(
    "metadata",
    [
        packed(narrower(stored())),
        packed(longer_claim(stored())),
        packed([*stored(), "more"]),
        packed({"topic": "id"}),
        packed(stored(), "rd2."),
        "rd2.what may be",
        "rd11.",
    ],
)
def test_what_a_newer_version_wrote_is_not_read_in_part(metadata: str) -> None:
    """Without a new condition of its filter a claim is wider than what was redriven: those letters would stay."""
    assert decode_past(metadata) == NewerPast()


@pytest.mark.parametrize("metadata", ["rd1", "rd.", "rdx.", "rd-2.", "xrd2."])
def test_what_no_version_would_write_says_nothing(metadata: str) -> None:
    assert decode_past(metadata) is None
