"""Writes copies, events and progress in one transaction."""
