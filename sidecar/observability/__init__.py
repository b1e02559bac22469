"""Logs, metrics and traces. Nothing is decided here."""
