"""For developers and first-time users: an embedded real Apache Kafka, a sample service, the demo."""
