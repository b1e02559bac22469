"""From settings to a running sidecar."""
