"""The push client: a record or a batch, one HTTP/1.1 POST, an outcome for each record (INTERFACE §2, contract §5, §6).

The way of a delivery, and the file for each part:

    Record -> request.py (bytes) -> connection.py (write, read) -> verdict.py (Outcome) -> reply

`forwarded_headers.py` decides which of the record's own headers travel, `target.py` where to, `pool.py` on which
connection and for how long. `batch.py` gathers a batch, `batch_verdicts.py` reads its list of verdicts. Everything but
`connection.py`, `pool.py` and `batch.py` is pure. What the service does is always an outcome, never an exception.
"""

from sidecar.delivery.push.pool import Push
from sidecar.delivery.push.settings import PushSettings
from sidecar.delivery.push.target import Target, parse_target

__all__ = ["Push", "PushSettings", "Target", "parse_target"]
