"""The Kafka client: consumer, committer, admin requests, credentials."""
