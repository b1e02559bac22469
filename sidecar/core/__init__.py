"""Decisions without input or output: no socket, thread, clock, random, log, Kafka or HTTP.

Time comes in as a value (`Now`), records come in by calls, and everything that must happen in the world goes out
through the ports in `ports.py`. The same code therefore runs on uvloop in production and on a virtual clock in tests.
"""
