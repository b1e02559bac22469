"""One file per section of reconsume.yaml."""
