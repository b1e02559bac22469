"""The sample order service of the demo: one behaviour, and one front for each way to get its orders.

It is a process of its own. It knows of the sidecar only the published interface (contract 1.3, 12.8).
"""
