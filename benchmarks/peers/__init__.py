"""What a user would pick instead of Reconsume, measured on the same topic, service, broker and machine."""
