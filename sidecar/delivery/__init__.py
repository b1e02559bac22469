"""Delivers records to the service: by push, by pull, or not at all (relay); broadcast."""
