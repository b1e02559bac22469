"""FastStream: a failure is not committed, and the consumer seeks back to it; one worker for each partition."""

import asyncio
import logging
import sys

import httpx
from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from faststream.kafka.annotations import KafkaMessage


async def consume(bootstrap, topic, group, url, partitions):
    """Deliver records until the process is ended."""
    client, broker = httpx.AsyncClient(), KafkaBroker(bootstrap, log_level=logging.WARNING)

    @broker.subscriber(
        topic,
        group_id=group,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.NACK_ON_ERROR,
        max_workers=int(partitions),
    )
    async def deliver(message: KafkaMessage):
        (await client.post(url, content=message.body)).raise_for_status()

    await FastStream(broker).run()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
