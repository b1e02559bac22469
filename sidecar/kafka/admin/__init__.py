"""Requests to the cluster: topics, settings, groups, ACLs."""
