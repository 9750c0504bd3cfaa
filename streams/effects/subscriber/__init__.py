"""Subscribers: they carry out the effects of an app, each once, with a ledger that remembers what was done."""

from streams.effects.subscriber.settings import SubscriberSettings
from streams.effects.subscriber.subscriber import Subscriber

__all__ = ["Subscriber", "SubscriberSettings"]
