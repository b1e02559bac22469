"""Dead letters in Kafka: found, brought back, put by, deleted for good."""
