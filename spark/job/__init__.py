"""The view's job: its queries, the supervision of them, and the metrics and progress that it reports."""
