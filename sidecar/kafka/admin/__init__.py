"""Requests to the cluster: `connection` awaits them all, `cluster` only asks, `topics` and `acls` change something."""
