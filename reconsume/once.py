"""For a service's own code: let the effect of a record happen once. The names of the package `once`."""

from reconsume.once import DDL, DeliveryKey, claim, create_table, delivery_key, forget, once

__all__ = ["DDL", "DeliveryKey", "claim", "create_table", "delivery_key", "forget", "once"]
