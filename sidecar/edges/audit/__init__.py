"""The audit's way to Kafka, and the books (SQLite) that its rules are held against."""
