"""`acls`: the access rights that each Kafka user needs, planned (`plan`), applied (`commands`) and exported
(`export`, `strimzi`)."""
