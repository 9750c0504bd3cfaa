"""What a user writes workflows with."""
