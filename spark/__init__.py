"""The group-wide retry view, computed by Spark Structured Streaming from the groups' event topics (contract 11.3).

`schema`, `view` and `stats` hold pure functions from DataFrame to DataFrame, for a batch and for a stream alike. The
other modules start, run and watch the queries. No module here imports the sidecar, and the sidecar imports none of
these.
"""
