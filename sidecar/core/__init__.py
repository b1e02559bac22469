"""Pure decision code: it uses no socket, thread, clock, random number, log, Kafka client or HTTP.

The time comes in as a value (`Now`), and records come in by method calls. Every effect on the world goes out through
the ports in `ports.py`. The same code therefore runs on uvloop in production and on a virtual clock in tests.
"""
