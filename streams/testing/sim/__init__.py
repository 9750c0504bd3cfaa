"""The deterministic simulator: whole clusters in virtual time, with every fault that a seed decides."""
