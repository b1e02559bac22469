"""The first files of a new user: a commented configuration, a Compose file, and manifests for Kubernetes.

- `configuration` has the answers, checks them by the settings, and writes them as `reconsume.yaml`
- `placeholder` is the program that stands where the user's service will be
- `compose` and `manifests` write the files around both
"""
