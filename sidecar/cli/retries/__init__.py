"""`retries`: the group-wide view, listed and summed (`commands`), and shown live (`watch`)."""
