"""Credentials of Kafka clients: watched, checked, and exchanged while the clients run."""
