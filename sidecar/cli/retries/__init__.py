"""`retries`: the group-wide view, listed and summed (`commands`), and the queues of keys (`blocked`)."""
