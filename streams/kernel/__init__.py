"""The pure core: events, state, decisions, and the driver of workflow code. No I/O, no clock, no threads."""
