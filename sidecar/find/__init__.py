"""Find records that are not done, by key, value, header or id, in every topic of a group."""
