"""`demo` and `dev …`: the tools for development. The sidecar's image has none of this folder (`left_out`)."""
