"""From requests to the deliveries in them; and batches: many records in a request, and one answer to all of them.

The ledger has one delivery for each record; those of one request share the pseudo-header `:batch`.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from tests.support.proof.ledger import FAILED, TOOK, Delivery
from tests.support.service.behaviours import OK, Answer, Behaviour, Break, Request, Script

ENVELOPE = "application/vnd.reconsume+json"
BATCH = ":batch"
LEFT_OUT = Answer(299, means=FAILED)
"""A record that is not in the list of verdicts."""


class Said(NamedTuple):
    """The answer to a batch, and what it means for each record; None: what its status says, for all."""

    behaviour: Behaviour
    means: tuple[str, ...] | None = None


BatchScript: TypeAlias = Callable[[Sequence[Request]], Said]


def deliveries_of(headers: dict[str, str], body: bytes, number: int, received: int) -> list[Delivery]:
    """The records of an envelope, each as a delivery."""
    said = json.loads(body)
    assert said["group"] == headers["reconsume-group"]
    pairs = (*headers.items(), (BATCH, str(number)))
    return [_delivery(record, pairs, received) for record in said["records"]]


def delivery_of(headers: dict[str, str], body: bytes, received: int) -> Delivery:
    """The record of a request that is no envelope."""
    null = headers.get("reconsume-null") == "value"
    if null and body:
        raise ValueError("a null value came with a body")
    encoded = headers.get("reconsume-key-base64")
    plain = headers.get("reconsume-key")
    key = base64.b64decode(encoded) if encoded is not None else None if plain is None else plain.encode()
    return Delivery(
        number=0,
        received=received,
        id=unquote(headers["reconsume-id"]),
        times=int(headers["reconsume-times"]),
        redrives=int(headers["reconsume-redrives"]),
        idempotency_key=headers["idempotency-key"],
        key=key,
        value=None if null else body,
        headers=tuple(headers.items()),
    )


def _delivery(record: Mapping[str, Any], headers: tuple[tuple[str, str], ...], received: int) -> Delivery:
    return Delivery(
        number=0,
        received=received,
        id=record["id"],
        times=record["times"],
        redrives=record["redrives"],
        idempotency_key=record["idempotency_key"],
        key=_bytes(record["key_base64"]),
        value=_bytes(record["value_base64"]),
        headers=headers,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


class Told:
    """A batch script that gives one answer to each of the first batches, and then takes everything."""

    def __init__(self, *first: Said) -> None:
        self._first = list(first)

    def __call__(self, _requests: Sequence[Request]) -> Said:
        """The answer to the next batch."""
        return self._first.pop(0) if self._first else Said(OK)


def one_by_one(script: Script) -> BatchScript:
    """A batch script that asks `script` for each record and answers with a list of verdicts, or with nothing when all
    are taken. A `Break` for any of them breaks the answer to all."""

    def answer(requests: Sequence[Request]) -> Said:
        each = [script(request) for request in requests]
        broken = next((one for one in each if isinstance(one, Break)), None)
        if broken is not None:
            return Said(broken)
        whole = [one for one in each if isinstance(one, Answer)]
        after = max(one.after for one in whole)
        if all(one.status == 200 and not one.headers and not one.body for one in whole):
            return Said(Answer(after=after, until=whole[0].until))
        listed = [
            {"id": request.id, **_verdict(one)}
            for request, one in zip(requests, whole, strict=True)
            if one is not LEFT_OUT
        ]
        body = json.dumps({"verdicts": listed}).encode()
        answer = Answer(200, (("Content-Type", "application/json"),), body, after, whole[0].until)
        return Said(answer, tuple(one.means or (TOOK if one == OK or one.status == 200 else FAILED) for one in whole))

    return answer


def _verdict(answer: Answer) -> dict[str, str]:
    """The entry that says what the answer would have said alone."""
    words = dict(answer.headers).get("Reconsume-Verdict", "commit" if answer.status == 200 else "retry")
    verdict, *fields = (part.strip() for part in words.split(";"))
    return {"verdict": verdict, **dict(field.split("=", 1) for field in fields)}


def batches_of(deliveries: Sequence[Delivery]) -> list[list[Delivery]]:
    """The deliveries of each request, in the order of the requests."""
    found: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(dict(delivery.headers)[BATCH], []).append(delivery)
    return list(found.values())


def sizes_of(deliveries: Sequence[Delivery]) -> Counter[int]:
    """How many requests had how many records."""
    return Counter(len(batch) for batch in batches_of(deliveries))
