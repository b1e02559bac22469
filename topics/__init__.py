"""The agreement on the wire: names, headers, delays, events and topic specifications.

Pure, and imports nothing of ours, so that the sidecar, the Spark jobs and the tests share one spelling of everything
that Kafka ever sees.
"""
