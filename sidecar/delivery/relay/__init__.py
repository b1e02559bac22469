"""Relay mode: the service reads Kafka itself and posts what it could not handle."""
