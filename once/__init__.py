"""For a service's own code: let the effect of a record happen once, however often the record is delivered.

The service hands in its DB-API 2.0 connection; nothing but the standard library is needed, and nothing of the sidecar
is imported, so that the two modules may also be copied. The recipe, also as plain SQL, is docs/once.md.
"""

from once.key import DeliveryKey, delivery_key
from once.store import DDL, claim, create_table, forget, once

__all__ = ["DDL", "DeliveryKey", "claim", "create_table", "delivery_key", "forget", "once"]
