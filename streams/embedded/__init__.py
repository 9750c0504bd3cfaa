"""What every part that keeps a sqlite file shares: the thread of its connection, and the care for its file."""
