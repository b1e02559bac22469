"""Read the assigned partitions: where each one starts, what is fetched, and which commands the lane gives."""
