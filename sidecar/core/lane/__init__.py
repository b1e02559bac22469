"""The lane and its parts."""
