"""What programs and people talk to runs with: commands go in by the log, and answers are read from it."""

from streams.client.client import ACCEPT_SECONDS, Client
from streams.client.fold import CheckpointAt, RunView
from streams.client.partition_view import PartitionView
from streams.client.reading import StoredEvent
from streams.client.sender import Sent

__all__ = ["ACCEPT_SECONDS", "CheckpointAt", "Client", "PartitionView", "RunView", "Sent", "StoredEvent"]
