"""The key of a delivery: the same for every retry, and never guessed from a request that is not as agreed."""

from __future__ import annotations

import subprocess
import sys
from email.message import Message

import pytest

from reconsume.once import DeliveryKey, ProducerKey, delivery_key, record_key
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.retry_headers import RetryState
from tests.support.sidecar.push_requests import read

KEY = "Idempotency-Key"
GOOD = {"Reconsume-Times": "2", KEY: "billing/orders:3:1024/0"}


def test_the_key_is_group_id_cycle_and_redrives_and_not_times() -> None:
    keys = {
        delivery_key({**GOOD, "Reconsume-Times": str(times), KEY: "billing/orders:3:1024/1"}) for times in range(17)
    }
    assert keys == {DeliveryKey("billing", "orders:3:1024", 1)}
    assert delivery_key({KEY: "billing/orders:3:1024/2.1"}) == DeliveryKey("billing", "orders:3:1024", 1, 2)


@pytest.mark.parametrize(
    "life",
    [
        None,
        RetryState("my.orders_v-2:0:9", "my.orders_v-2", times=16, redrives=12),
        RetryState("my.orders_v-2:0:9", "my.orders_v-2", times=16, redrives=12, cycle=3),
    ],
)
def test_the_key_of_a_request_as_the_sidecar_writes_it(life: RetryState | None) -> None:
    source = Partition("my.orders_v-2" if life is None else "g-RETRY-10s", 0)
    request = read(Record(source, 9, 1, 1_700_000_000_000, None, b"{}", [], life))
    counts = (0, 0) if life is None else (life.redrives, life.cycle)
    expected = DeliveryKey(request["Reconsume-Group"], "my.orders_v-2:0:9", *counts)
    assert delivery_key(dict(request.headers)) == expected


def test_names_of_headers_are_read_in_any_case() -> None:
    assert delivery_key({name.lower(): value for name, value in GOOD.items()}) == delivery_key(GOOD)


def test_a_missing_header_is_named() -> None:
    with pytest.raises(ValueError, match=f"^{KEY} is missing$"):
        delivery_key({"Reconsume-Times": "2"})


def test_a_doubled_header_is_refused_whatever_its_values() -> None:
    headers = Message()
    for key, value in GOOD.items():
        headers[key] = value
    headers[KEY.upper()] = GOOD[KEY]
    with pytest.raises(ValueError, match=f"^{KEY} is there more than once$"):
        delivery_key(headers)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//",
        "orders:3:1024",
        "orders:3:1024/0",
        "orders:3:1024/0/0",
        "billing/orders:3:1024",
        "billing/orders:3:1024/",
        "billing/orders:3:1024//0",
        "billing/orders:3:1024/0/0",
        "billing/orders:3:1024/-1",
        "billing/orders:3:1024/+1",
        "billing/orders:3:1024/1e3",
        "billing/orders:3:1024/1_0",
        "billing/orders:3:1024/00",
        "billing/orders:3:1024/٣",
        "billing/orders:3:1024/1000000",
        "billing/orders:3:1024/0.1",
        "billing/orders:3:1024/01.1",
        "billing/orders:3:1024/1.",
        "billing/orders:3:1024/1.01",
        "billing/orders:3:1024/.1",
        "billing/orders:3:1024/1.2.3",
        "billing/orders:3:1024/1000000.1",
        "billing/orders:3:1024/0\n",
        "billing/orders:3:1024\n/0",
        "billing/ orders:3:1024/0",
        "billing/orders:3:1024/0, billing/orders:3:1024/0",
        "billing/orders:03:1024/0",
        "billing/orders:3:٣/0",
        "billing/orders:3:/0",
        "billing/orders:3/0",
        "billing/:3:1024/0",
        "billing/a:b:3:1024/0",
        "billing/órders:3:1024/0",
        "billing/orders:3:1024'; DROP TABLE reconsume_once; --/0",
        f"billing/{'t' * 250}:3:1024/0",
        f"billing/orders:3:{'9' * 20}/0",
        "/" * 100_000,
    ],
)
def test_a_malformed_key_is_refused_in_one_short_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(Idempotency-Key|the group|the id) is ") as fault:
        delivery_key({KEY: text})
    assert len(str(fault.value)) < 120
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("group", ["", "billing ", "bil%2Fling", "g" * 250, "bill\x00ing", "a,b"])
def test_a_group_that_kafka_would_not_take_is_refused(group: str) -> None:
    with pytest.raises(ValueError, match=r"^the group is "):
        delivery_key({KEY: f"{group}/orders:3:1024/0"})


@pytest.mark.parametrize("name", ["redrives", "cycle"])
@pytest.mark.parametrize("count", [-1, 1_000_000, True, 1.0, "1", None])
def test_a_key_built_from_a_batch_is_checked_too(name: str, count: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        DeliveryKey("billing", "orders:3:1024", **{name: count})  # type: ignore[arg-type]


@pytest.mark.parametrize(("group", "identity"), [(None, "orders:3:1024"), ("billing", 5), ("billing", b"orders:3:1")])
def test_values_that_are_not_text_are_refused(group: object, identity: object) -> None:
    with pytest.raises(ValueError, match=r"^the (group|id) is "):
        DeliveryKey(group, identity)  # type: ignore[arg-type]


def test_the_helper_brings_nothing_but_the_standard_library() -> None:
    program = "import sys, once; print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, timeout=20
    )
    assert set(loaded.stdout.split()) <= {"once", "__main__"}


def test_a_text_of_a_producer_is_a_key_of_its_group_and_topic() -> None:
    """Given texts and places that differ, then no two rows of the table are equal, and each fits its column."""
    texts = ["a", "A", "a b", "orders:3:1024", "x" * 200, "x" * 201, "é", "a/b", f"sha256:{'0' * 64}"]
    keys = [ProducerKey(group, topic, text) for group in ("g", "h") for topic in ("t", "t" * 249) for text in texts]
    rows = [key.row for key in keys] + [DeliveryKey("g", "t:3:1024").row]
    assert len(set(rows)) == len(rows)
    assert all(len(row[1]) <= 280 and row[1].isascii() for row in rows)


def test_a_text_is_the_same_key_unchanged_and_as_the_header_has_it() -> None:
    long = ProducerKey("g", "t", "two words")
    assert ProducerKey("g", "t", long.text) == long
    assert long.text.startswith("sha256:")


@pytest.mark.parametrize(
    "fields",
    [
        ("", "t", "x"),
        ("g", "a topic", "x"),
        ("g", "t", ""),
        ("g", "t", None),
        ("g", "t", "x", -1),
        ("g", "t", "x", True),
    ],
)
def test_a_key_of_a_producer_that_no_sidecar_writes_is_refused(fields: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"not|empty"):
        ProducerKey(*fields)  # type: ignore[arg-type]


def test_a_record_without_its_fields_has_no_key() -> None:
    with pytest.raises(ValueError, match="the record has no 'redrives'"):
        record_key("billing", {"id": "orders:3:1024", "idempotency_key": "A-17", "topic": "orders"})
