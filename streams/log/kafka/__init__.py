"""The log on Apache Kafka; the only place that imports confluent_kafka."""

from streams.log.kafka.log import KafkaLog, open_kafka

__all__ = ["KafkaLog", "open_kafka"]
