"""Credentials of Kafka clients: watched, checked, and replaced while the clients run."""
