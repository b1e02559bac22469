"""Who sends a request: the bearer token, and the signature of Standard Webhooks, as a receiver reads them."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.delivery.push.forwarded_headers import BUDGET_BYTES
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.signature import (
    LONGEST_ID,
    SIGNED_ROOM,
    authenticated,
    secrets_in,
    signature_lines,
    token_in,
)
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.sidecar.settings.deliver import SIGNATURE
from tests.support.service.signatures import takes
from tests.support.sidecar.push_requests import Read, a_record, rendered

SECRET = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = b"whsec_" + base64.b64encode(bytes(range(32)))


def verifies(request: Read, secret: bytes) -> bool:
    """Whether a receiver with this secret takes the request."""
    headers = {name.lower(): value for name, value in request.headers}
    return takes(headers, request.body, secret.decode())


def sent(secrets: bytes = SECRET, token: str = "", seconds: int = 1_614_265_330, **changes: Any) -> Read:
    return Read(authenticated(rendered(a_record(**changes)), token, secrets_in(secrets), seconds))


def test_the_published_vector_has_its_signature() -> None:
    lines = signature_lines("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}', secrets_in(SECRET))
    assert lines == (
        "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek\r\nwebhook-timestamp: 1614265330\r\n"
        "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\r\n"
    )


@given(
    value=st.none() | st.binary(max_size=200), key=st.none() | st.binary(max_size=50), seconds=st.integers(0, 1 << 33)
)
def test_any_record_is_signed_over_the_bytes_of_its_body(value: bytes | None, key: bytes | None, seconds: int) -> None:
    request = sent(value=value, key=key, seconds=seconds)
    assert verifies(request, SECRET)
    assert not verifies(request, OTHER)
    assert (request["webhook-timestamp"], request["webhook-id"]) == (str(seconds), request["Reconsume-Id"])
    assert request.complete == 1


def test_with_two_secrets_a_receiver_of_either_takes_the_request() -> None:
    for form in (SECRET + b" " + OTHER, SECRET + b"\n\n" + OTHER + b"\r\n"):
        request = sent(form)
        assert verifies(request, SECRET)
        assert verifies(request, OTHER)


def test_a_token_stands_in_the_head_and_the_rest_of_the_request_is_as_it_was() -> None:
    plain = Read(rendered(a_record()))
    request = Read(authenticated(rendered(a_record()), "abc.def-_~+/==", (), 0))
    assert request["Authorization"] == "Bearer abc.def-_~+/=="
    assert [pair for pair in request.headers if pair[0] != "Authorization"] == plain.headers
    assert request.body == plain.body


def test_an_id_has_no_dot_and_is_the_same_at_each_attempt() -> None:
    """With dots in it, one signature would fit several messages."""
    dotted = a_record().source._replace(topic="shop.orders.v1")
    assert sent(source=dotted)["webhook-id"] == "shop%2Eorders%2Ev1:3:1024"
    assert sent(source=dotted, again=2)["webhook-id"] == sent(source=dotted)["webhook-id"]
    assert sent(source=dotted, offset=1025)["webhook-id"] != sent(source=dotted)["webhook-id"]


def test_a_batch_has_an_id_of_its_own_that_is_that_of_its_records() -> None:
    render = RenderBatch(parse_target("http://127.0.0.1/", False), "billing", 30_000)
    bodies = [render([render.part(a_record(offset=offset))]) for offset in (1, 1, 2)]
    first, again, other = (Read(authenticated(body, "", secrets_in(SECRET), 1)) for body in bodies)
    assert verifies(first, SECRET)
    assert first["webhook-id"] == again["webhook-id"] != other["webhook-id"]
    assert "." not in first["webhook-id"]


def test_the_lines_of_a_signature_stay_within_their_room() -> None:
    topic = "." * 249
    secrets = b" ".join(b"whsec_" + base64.b64encode(bytes([number]) * 32) for number in range(4))
    source = a_record().source._replace(topic=topic)
    request = rendered(a_record(source=source))
    signed = authenticated(request, "", secrets_in(secrets), 1 << 33)
    assert len(signed) - len(request) <= SIGNED_ROOM
    assert len(Read(signed)["webhook-id"]) <= LONGEST_ID


def test_a_head_with_a_token_and_a_signature_has_at_most_8_kib() -> None:
    token = "t" * 2_000
    headers = [(f"x-{number}", b"v" * 200) for number in range(60)]
    record = a_record(key=b"k" * 4_000, headers=headers)
    request = rendered(record, forward_headers=("x-*",), reserved=len(token) + 256 + SIGNED_ROOM, written=SIGNATURE)
    head = authenticated(request, token, secrets_in(SECRET), 1).partition(b"\r\n\r\n")[0]
    assert BUDGET_BYTES // 2 < len(head) + 4 <= BUDGET_BYTES


@pytest.mark.parametrize("name", ["webhook-id", "Webhook-Signature", "webhook_timestamp", "WEBHOOK.ID"])
def test_no_record_brings_lines_of_a_signature_where_the_sidecar_signs(name: str) -> None:
    record = a_record(headers=[(name, b"forged"), ("webhook-event", b"paid")])
    assert name in Read(rendered(record, forward_headers=("?*",))).names, "else they are headers as any other"
    names = Read(rendered(record, forward_headers=("?*",), written=SIGNATURE)).names
    assert name not in names
    assert "webhook-event" in names


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "number 1) that does not begin with whsec_"),
        (SECRET + b"\nwhsk_abc", "number 2) that does not begin with whsec_"),
        (b"whsec_not*base64", "number 1) that is not whsec_ and base64"),
        (b"whsec_MfKQ", "of 3 bytes; it must have 24 to 64"),
        (b"whsec_" + base64.b64encode(bytes(65)), "of 65 bytes; it must have 24 to 64"),
        (b" ".join([OTHER] * 5), "more than 4 secrets"),
        (b"\n".join([SECRET, OTHER, SECRET]), "holds one secret twice (numbers 1 and 3)"),
        (b"whsec_\xff\xfe", "is not ASCII"),
        (b"whsec_\x00" * 3, "that is not whsec_ and base64"),
    ],
)
def test_what_is_no_secret_is_refused_with_a_sentence_that_shows_none_of_it(held: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        secrets_in(held)
    assert not any(word in str(refused.value) for word in ("MfKQ", "whsk_", "not*base64"))


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"Bearer abc", "holds no bearer token"),
        (b"abc\ndef", "holds no bearer token"),
        (b"abc\r\nX-Admin: 1", "holds no bearer token"),
        (b"a\x00b", "holds no bearer token"),
        (b"s\xc3\xa9cret", "is not ASCII"),
        (b"a" * 4_097, "more than 4096 characters"),
    ],
)
def test_what_is_no_token_is_refused_with_a_sentence_that_shows_none_of_it(held: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        token_in(held)
    assert "abc" not in str(refused.value)


@given(held=st.binary(max_size=100))
def test_any_bytes_of_a_file_are_read_or_refused(held: bytes) -> None:
    for read in (secrets_in, token_in):
        with suppress(ValueError):
            read(held)


def test_a_token_is_read_without_the_line_end_that_editors_leave() -> None:
    assert token_in(b"\xef\xbb\xbfabc.def\r\n") == "abc.def"
