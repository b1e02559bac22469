"""The sample order service of the demo: one behaviour, and a front for each way to get its orders.

A process of its own that knows of the sidecar only what the outside is told (INTERFACE §2, §3).
"""
