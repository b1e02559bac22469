"""How many deliveries may be in flight, and which lane is next."""
