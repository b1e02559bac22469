"""The embedded broker: its releases, its nodes, and their configuration."""
