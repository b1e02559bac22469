"""`retries`: the group-wide view, listed and summed (`commands`), and watched live (`watch`)."""
