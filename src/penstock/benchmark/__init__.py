"""What a user's own database can do: measured in queues that are removed again."""
