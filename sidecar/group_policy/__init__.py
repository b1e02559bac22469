"""The group's retry policy: read from its topic, applied to this instance, written by the command line.

- in a running sidecar: `follower` reads the topic on a thread, `controller` decides which policy is in force,
  `removed_levels` finds levels that left the policy and still hold records
- the group's instances: `heartbeat` publishes this one, `members` and `peers` compare the others with it
- outside: `store` reads and writes the topic for the command line and the dashboard, `topic` reads it for checks
"""
