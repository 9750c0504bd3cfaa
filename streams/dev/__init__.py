"""Starts a real Kafka and a real PostgreSQL on this machine, from packages alone: for development and for tests."""

from streams.dev.kafka import Kafka, kill_kafka, read_kafka, start_kafka, stop_kafka
from streams.dev.packages import kafka_classpath, tools_classpath
from streams.dev.postgres import Postgres, start_postgres, stop_postgres
from streams.dev.process import StackFailed
from streams.dev.stack import FOLDER_DEFAULT, Stack, crashed, down, status, up

__all__ = [
    "FOLDER_DEFAULT",
    "Kafka",
    "Postgres",
    "Stack",
    "StackFailed",
    "crashed",
    "down",
    "kafka_classpath",
    "kill_kafka",
    "read_kafka",
    "start_kafka",
    "start_postgres",
    "status",
    "stop_kafka",
    "stop_postgres",
    "tools_classpath",
    "up",
]
