"""Measures how fast `streams` is and what it takes, against bare commits and, later, other engines."""
