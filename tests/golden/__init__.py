"""What this version writes to Kafka and hands out, one file a format. `python -m tests.golden` writes them anew.

A file that differs is a change of format: docs/upgrade.md says which changes the version before bears.
"""
