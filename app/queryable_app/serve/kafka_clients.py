"""Moved to `queryable_app.kafka_clients`, which other rooms use, too."""

from queryable_app.kafka_clients import KafkaAway, client_arguments

__all__ = ["KafkaAway", "client_arguments"]
