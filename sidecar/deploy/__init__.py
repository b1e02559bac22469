"""The sidecar beside a service in Kubernetes: what is added to a pod, and how a manifest is changed.

- `annotations` has the options, `container` builds the container and its volumes
- `workload` changes one workload, `manifest_file` a whole file
- `starter` has the first files of a new user, which `init` writes
- `yaml_edit` changes the text of a document in place, `yaml_positions` finds where each node stands in it

Pure: texts and values in, texts and values out. `sidecar/cli` handles files, streams and messages to people.
"""
