"""Reconsume's sidecar: delivers a service's Kafka records to it and retries the failed ones later."""
