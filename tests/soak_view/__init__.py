"""The view's job under a seeded schedule of what happens to it, to its groups and to its topics."""
