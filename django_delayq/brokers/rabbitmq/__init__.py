"""Offer the RabbitMQ broker, which delays alarms by dead-lettering. See docs/internals/rabbitmq.md."""

from django_delayq.brokers.rabbitmq.broker import RabbitMQBroker

__all__ = ["RabbitMQBroker"]
