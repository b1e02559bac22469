"""The demo: a sample service, traffic, and a checker of what came of it."""
