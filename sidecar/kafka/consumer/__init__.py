"""Reads the assigned partitions: where each starts, what is fetched, what the lane asks of the consumer."""
