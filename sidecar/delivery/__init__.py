"""Deliver records to the service: by push, by pull, or not at all (relay). Also broadcast mode."""
