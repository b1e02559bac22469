"""The world, one thing a file: Kafka, HTTP, clocks, metrics. Nothing here decides what happens to a record."""
