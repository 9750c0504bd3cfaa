"""The worker: owns partitions, takes turns, commits them, and runs tasks."""
