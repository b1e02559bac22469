"""The view's job: its queries, who looks after them, and what it tells of itself."""
