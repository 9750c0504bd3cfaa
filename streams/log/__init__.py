"""The logs: one port, several transports, one contract that all of them pass."""
