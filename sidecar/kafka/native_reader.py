"""Read single records by librdkafka's own functions, to learn what its Python client does not tell.

A record with more than 100 000 headers and one without any are the same for `Message.headers()`: the client drops the
error of `rd_kafka_message_headers`, and tells None. Only the C function says which of the two it is. These functions
are in librdkafka's public interface (`rdkafka.h`), and the library is the one that the Python client has loaded.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, cimpl

from reconsume.sidecar.core.record import Partition

_CONSUMER = 1  # RD_KAFKA_CONSUMER
_ACCEPTED = 0  # RD_KAFKA_CONF_OK
_AT_ONCE = 0x8  # RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE: there is no group to leave
_STEP = 50
"""ms of one call at most."""


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("_private", c_void_p),
    )


class UnreadRecord(NamedTuple):
    """What a partition has at an offset, or behind it.

    `error`: a code of `KafkaError`; 0 for a record. `hides`: whether the record has more headers than the client reads.
    """

    partition: Partition
    offset: int
    error: int
    hides: bool


def _library() -> ctypes.CDLL:
    """Return the librdkafka of the Python client: what it is linked to is found by way of it."""
    library = ctypes.CDLL(cimpl.__file__)
    for name, result, *arguments in (
        ("rd_kafka_conf_new", c_void_p),
        ("rd_kafka_conf_set", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
        ("rd_kafka_conf_set_log_cb", None, c_void_p, c_void_p),
        ("rd_kafka_conf_destroy", None, c_void_p),
        ("rd_kafka_new", c_void_p, c_int, c_void_p, c_char_p, c_size_t),
        ("rd_kafka_poll", c_int, c_void_p, c_int),
        ("rd_kafka_destroy_flags", None, c_void_p, c_int),
        ("rd_kafka_topic_new", c_void_p, c_void_p, c_char_p, c_void_p),
        ("rd_kafka_topic_destroy", None, c_void_p),
        ("rd_kafka_queue_new", c_void_p, c_void_p),
        ("rd_kafka_queue_destroy", None, c_void_p),
        ("rd_kafka_consume_start_queue", c_int, c_void_p, c_int32, c_int64, c_void_p),
        ("rd_kafka_consume_stop", c_int, c_void_p, c_int32),
        ("rd_kafka_consume_queue", POINTER(_Message), c_void_p, c_int),
        ("rd_kafka_message_headers", c_int, POINTER(_Message), POINTER(c_void_p)),
        ("rd_kafka_message_destroy", None, POINTER(_Message)),
    ):
        function = getattr(library, str(name))
        function.restype, function.argtypes = result, arguments
    return library


class NativeReader:
    """A client that joins no group. One thread uses it, and calls `close` at the end.

    `config`: properties of a Python client; what are no texts or numbers (a logger) is left out. Raises ValueError
    where librdkafka refuses them.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._library = _library()
        self._client = self._made(config)
        self._queue = self._library.rd_kafka_queue_new(self._client)
        self._topics: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._reading: set[Partition] = set()

    def _made(self, config: Mapping[str, object]) -> Any:
        library, said = self._library, ctypes.create_string_buffer(512)
        made = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set_log_cb(made, None)  # by default it writes to stderr
        for name, value in config.items():
            if not isinstance(value, str | int | float):
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if library.rd_kafka_conf_set(made, name.encode(), text.encode(), said, len(said)) != _ACCEPTED:
                library.rd_kafka_conf_destroy(made)
                raise ValueError(f"{name}: refused by librdkafka")
        client = library.rd_kafka_new(_CONSUMER, made, said, len(said))
        if not client:
            library.rd_kafka_conf_destroy(made)
            raise ValueError(said.value.decode(errors="replace"))
        return client

    def start(self, partition: Partition, offset: int) -> None:
        """Read a partition from this offset on, and no longer from where it was read."""
        self.stop(partition)
        topic = self._topics.get(partition.topic)
        if topic is None:
            topic = self._library.rd_kafka_topic_new(self._client, partition.topic.encode(), None)
            self._topics[partition.topic], self._names[topic] = topic, partition.topic
        self._library.rd_kafka_consume_start_queue(topic, partition.number, offset, self._queue)
        self._reading.add(partition)

    def stop(self, partition: Partition) -> None:
        """Read a partition no longer. What was fetched of it is dropped."""
        if partition in self._reading:
            self._reading.discard(partition)
            self._library.rd_kafka_consume_stop(self._topics[partition.topic], partition.number)

    def take(self, deadline: float) -> UnreadRecord | None:
        """Return the next record, end or error of a partition that is read; None at `deadline` (monotonic seconds)."""
        library = self._library
        while (left := deadline - time.monotonic()) > 0:
            library.rd_kafka_poll(self._client, 0)  # a token of OAUTHBEARER is renewed in here
            message = library.rd_kafka_consume_queue(self._queue, min(_STEP, int(left * 1000) + 1))
            if message:
                record = self._read(message)
                library.rd_kafka_message_destroy(message)
                if record is not None:
                    return record
        return None

    def _read(self, message: Any) -> UnreadRecord | None:
        read, headers = message.contents, c_void_p()
        if read.rkt is None:  # an error of the client as a whole
            return None
        partition = Partition(self._names[read.rkt], read.partition)
        said = 0 if read.err else self._library.rd_kafka_message_headers(message, byref(headers))
        return UnreadRecord(partition, read.offset, read.err, said == KafkaError._BAD_MSG)

    def close(self) -> None:
        """Free the client with its threads and connections."""
        for partition in list(self._reading):
            self.stop(partition)
        for topic in self._topics.values():
            self._library.rd_kafka_topic_destroy(topic)
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_destroy_flags(self._client, _AT_ONCE)
