"""`reconsume topics`: plan and create the topics of a group."""
