"""Find and write the events that the view of a group lacks, from its level topics and dead letters."""
