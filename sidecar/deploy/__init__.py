"""The sidecar beside a service in Kubernetes: what is put into a pod, and how a manifest is changed for it.

Pure: texts and values in, texts and values out. Files, streams and what is told to a person are `sidecar/cli`'s.
"""
