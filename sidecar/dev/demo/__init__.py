"""The demo: a sample service, traffic, and a check of the result."""
