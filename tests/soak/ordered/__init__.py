"""Ordered groups in a soak: order by key, from the ledger of a service of their own."""
