"""The group's retry policy: read from its topic, applied to this instance, written by the command line."""
