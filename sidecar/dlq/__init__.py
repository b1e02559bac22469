"""Dead letters: found, redriven, exported and imported, deleted for good."""
