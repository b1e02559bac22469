"""The control log of a group: its policy, holds, decisions, actions and heartbeats, on the policy topic.

- `state`: the fold of the log. Everything else asks it
- in a running sidecar: `follower` reads the log on a thread and publishes this instance, `controller` decides which
  policy is in force and which holds are obeyed
- for commands, the API, the dashboard and `doctor`: `control_log` reads and writes, `operations` is what operators do
- `levels`: what waits in levels and queues that left the policy or the configuration
"""
