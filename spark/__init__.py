"""The group-wide retry view: Spark Structured Streaming over the event topics of consumer groups (contract §8).

`schema`, `view` and `stats` are pure functions from DataFrame to DataFrame, alike on a batch and on a stream; what
starts, runs and watches queries lives in the other modules. Nothing here imports the sidecar, nor the other way round.
"""
