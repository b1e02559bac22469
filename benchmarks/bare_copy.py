"""The yardstick: the least that a Python process can do to copy records from one topic to another."""

from __future__ import annotations

import json
import operator
import resource
import sys
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

read_headers = operator.methodcaller("headers")


def copy(bootstrap: str, source: str, target: str, partitions: int, records: int) -> dict[str, float]:
    """Copy `records` records with key, value and headers, each confirmed by the broker; seconds and CPU seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare-copy",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": 16_384,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    confirmed = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal confirmed
        if error is not None:
            raise SystemExit(str(error))
        confirmed += 1

    consumer.assign([TopicPartition(source, number, 0) for number in range(partitions)])
    taken, started, cpu = 0, 0.0, 0.0
    while taken < records:
        for message in consumer.consume(500, 0.1):
            if not started:
                started, cpu = time.perf_counter(), _cpu()
            headers = read_headers(message)
            while True:
                try:
                    producer.produce(target, message.value(), message.key(), on_delivery=delivered, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.01)
            taken += 1
        producer.poll(0)
    producer.flush()
    consumer.close()
    return {"records": confirmed, "seconds": time.perf_counter() - started, "cpu": _cpu() - cpu}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(json.dumps(copy(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
