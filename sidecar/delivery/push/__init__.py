"""The push client: one HTTP/1.1 POST per record or batch, one outcome per record (contract 1.3 to 1.8).

The path of a delivery, and the file of each part:

    Record -> request.py (bytes) -> connection.py (write, read) -> verdict.py (Outcome) -> reply

`forwarded_headers.py` decides which of the record's own headers are sent. `target.py` holds the address. `pool.py`
chooses the connection and limits the time. `dial.py` connects, by TLS too. `access.py` holds what says to the service
who calls: `credentials.py` reads it from files, `signature.py` writes it into requests. `batch.py` gathers a batch;
`batch_verdicts.py` reads its list of verdicts. `health_check.py` polls the health URL. Pure are the files that render,
sign and read, and `target.py`.
Whatever the service does becomes an outcome, never an exception.
"""

from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target, parse_target

__all__ = ["Push", "PushSettings", "Target", "parse_target"]
