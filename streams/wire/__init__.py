"""Bytes and records: Avro for what the engine writes, JSON for user values, and the names of topics."""
