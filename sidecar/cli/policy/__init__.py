"""`reconsume policy`: show and set the retry policy of a group."""
