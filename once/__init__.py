"""For a service's own code: let the effect of a record happen once, however often the record is delivered.

`key` reads which record a request delivers. `store` keeps the keys of the effects that have happened, in the service's
database. The service passes in its DB-API 2.0 connection.

Only the standard library is needed, and nothing of the sidecar is imported, so the two modules may also be copied. The
recipe, also as plain SQL, is docs/once.md.
"""

from .key import DeliveryKey, ProducerKey, delivery_key, record_key
from .store import DDL, MYSQL_DDL, claim, create_table, forget, once

__all__ = [
    "DDL",
    "MYSQL_DDL",
    "DeliveryKey",
    "ProducerKey",
    "claim",
    "create_table",
    "delivery_key",
    "forget",
    "once",
    "record_key",
]
