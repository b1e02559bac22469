"""The key of a delivery: the same for every retry, and never guessed from a request that is not as agreed."""

from __future__ import annotations

import subprocess
import sys
from email.message import Message

import pytest

from reconsume.once import DeliveryKey, delivery_key
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.retry_headers import RetryState
from tests.support.sidecar.push_requests import read

GOOD = {"Reconsume-Group": "billing", "Idempotency-Key": "orders:3:1024/0/2"}


def test_the_key_is_group_id_and_redrives_and_not_times() -> None:
    keys = {delivery_key({**GOOD, "Idempotency-Key": f"orders:3:1024/1/{times}"}) for times in range(17)}
    assert keys == {DeliveryKey("billing", "orders:3:1024", 1)}


@pytest.mark.parametrize("life", [None, RetryState("my.orders_v-2:0:9", "my.orders_v-2", times=16, redrives=12)])
def test_the_key_of_a_request_as_the_sidecar_writes_it(life: RetryState | None) -> None:
    source = Partition("my.orders_v-2" if life is None else "g-RETRY-10s", 0)
    request = read(Record(source, 9, 1, 1_700_000_000_000, None, b"{}", [], life))
    expected = DeliveryKey(request["Reconsume-Group"], "my.orders_v-2:0:9", 0 if life is None else 12)
    assert delivery_key(dict(request.headers)) == expected


def test_names_of_headers_are_read_in_any_case() -> None:
    assert delivery_key({name.lower(): value for name, value in GOOD.items()}) == delivery_key(GOOD)


@pytest.mark.parametrize("name", list(GOOD))
def test_a_missing_header_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is missing$"):
        delivery_key({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize("name", list(GOOD))
def test_a_doubled_header_is_refused_whatever_its_values(name: str) -> None:
    headers = Message()
    for key, value in GOOD.items():
        headers[key] = value
    headers[name.upper()] = GOOD[name]
    with pytest.raises(ValueError, match=f"^{name} is there more than once$"):
        delivery_key(headers)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//",
        "orders:3:1024",
        "orders:3:1024/0",
        "orders:3:1024/0/0/0",
        "orders:3:1024//0",
        "orders:3:1024/0/",
        "orders:3:1024/-1/0",
        "orders:3:1024/+1/0",
        "orders:3:1024/1e3/0",
        "orders:3:1024/1_0/0",
        "orders:3:1024/00/0",
        "orders:3:1024/0/01",
        "orders:3:1024/٣/0",
        "orders:3:1024/1000000/0",
        "orders:3:1024/0/0\n",
        "orders:3:1024\n/0/0",
        " orders:3:1024/0/0",
        "orders:3:1024/0/0, orders:3:1024/0/0",
        "orders:03:1024/0/0",
        "orders:3:٣/0/0",
        "orders:3:/0/0",
        "orders:3/0/0",
        ":3:1024/0/0",
        "a:b:3:1024/0/0",
        "órders:3:1024/0/0",
        "orders:3:1024'; DROP TABLE reconsume_once; --/0/0",
        f"{'t' * 250}:3:1024/0/0",
        f"orders:3:{'9' * 20}/0/0",
        "/" * 100_000,
    ],
)
def test_a_malformed_key_is_refused_in_one_short_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(Idempotency-Key|the id) is ") as fault:
        delivery_key({**GOOD, "Idempotency-Key": text})
    assert len(str(fault.value)) < 120
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("group", ["", "billing ", "bil/ling", "g" * 250, "bill\x00ing", "a,b"])
def test_a_group_that_kafka_would_not_take_is_refused(group: str) -> None:
    with pytest.raises(ValueError, match=r"^the group is "):
        delivery_key({**GOOD, "Reconsume-Group": group})


@pytest.mark.parametrize("redrives", [-1, 1_000_000, True, 1.0, "1", None])
def test_a_key_built_from_a_batch_is_checked_too(redrives: object) -> None:
    with pytest.raises(ValueError, match=r"^redrives is "):
        DeliveryKey("billing", "orders:3:1024", redrives)  # type: ignore[arg-type]


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
