"""After any fault nothing is left: each is made many times in one process, which is measured."""
