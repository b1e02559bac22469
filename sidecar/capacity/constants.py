"""The constants of the capacity model: what was measured, when and where. The model itself is in `model.py`.

Another machine has other values. `python -m benchmarks` measures those of a sidecar, and
`python -m benchmarks.capacity` compares the model with a run.
"""

from __future__ import annotations

MEASURED = "2026-11-21, 2 virtual cores of an AMD EPYC, Python 3.11.7, Kafka 4.3.1 (benchmarks/README.md)"

PUSHED_PER_S = 39_347
"""Records per second that one sidecar delivers, one per request over TCP, with broker and service on the same 2
cores."""
FAILED_PER_S = 13_152
"""Records per second if every one fails: its copy and its event are written."""
PUSHED_CPU = 27.8e-6
"""Seconds of CPU that a sidecar spends on a record that succeeds."""
FAILED_CPU = 71.9e-6
IDLE_CPU = 0.004
"""Cores that an idle sidecar uses."""
WAKE_CPU, WAKE_S = 650e-6, 4.7e-3
"""Seconds of CPU to wake up once for the records that have come, and seconds within which records come together. They
make a record expensive at low rates and matter little at high ones. Measured while other work used the machine, so
pessimistic."""
TRANSACTION_CPU = 1.6e-3
"""Seconds of CPU of a small transaction, in addition to its records. Measured while other work used the machine."""
IDLE_BYTES, PUSH_BYTES, FAIL_BYTES = 63_000_000, 87_000_000, 130_000_000
"""Bytes of memory of a sidecar that is idle, that pushes at full speed, and that writes failures at full speed."""
LATE_P50, LATE_P99 = 2.2, 12.1
"""ms after its due time at which a retry reaches a service that is not busy."""

TRANSACTION_S = 0.008
"""Seconds that a transaction of fewer than 100 records takes, whatever is in it."""
GROUP_S = 0.020
"""Seconds between two transactions of a lane under load (`outbox.GROUP_FOR_MS`)."""
GROUP_RECORDS = 2_000
"""Waiting records that start a transaction at once (`outbox.GROUP_MAX`)."""
PROGRESS_S = 1.0
"""Seconds between commits of progress alone (`commits.PROGRESS_EVERY_MS`)."""

OUR_HEADERS = 259 + 35
"""Bytes of Reconsume's eleven headers, for names of usual length. A dead letter has 169 more (KIP-1191)."""
DEAD_HEADERS = OUR_HEADERS + 169
RECORD_OVERHEAD = 40
"""Bytes of Kafka's own framing of a record with some ten headers."""
EVENT_BYTES = 316 + 44 + 18 + RECORD_OVERHEAD
VIEW_BYTES = EVENT_BYTES + 36
SPARK_EVENTS_PER_CORE = 15_000
"""Events per second that one core keeps up with, in large batches: 38 µs each for the view and 28 for the sums. Other
work used the machine meanwhile, so this is pessimistic."""

# Not measured here; Kafka's own guidance, or arithmetic on the figures above. The output says so where it shows them.
BROKER_TRANSACTIONS = 1_000
"""Small transactions per second that one broker coordinates: an assumption."""
COORDINATORS = 50
"""The most brokers that can coordinate: the partitions of `__transaction_state`, by Kafka's default."""
BROKER_PARTITIONS = 4_000
"""Replicas that one broker holds, according to Kafka's operations guide."""
BROKER_BYTES_PER_S = 100_000_000
"""Bytes per second that one broker writes, replicas included: an assumption."""
BUSY = 0.7
"""The share of a limit above which queues grow. Lateness is then no longer that of an idle service."""
