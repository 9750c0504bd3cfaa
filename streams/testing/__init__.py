"""What ships for tests: an event loop in virtual time, and the simulator of whole clusters that runs on it."""
