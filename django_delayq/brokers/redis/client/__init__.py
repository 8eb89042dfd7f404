"""Run operations on one Redis server, on a primary behind sentinels, or on a cluster.

The rest of the Redis backend imports this package itself and none of its modules, and none of these knows what the
calls are for.
"""

from django_delayq.brokers.redis.client.calls import (
    Argument as Argument,
    Call as Call,
    Operation as Operation,
    Replies as Replies,
    Reply as Reply,
    Script as Script,
    SkipUnavailable as SkipUnavailable,
    as_int as as_int,
    as_ms as as_ms,
    ask as ask,
    clock_ms as clock_ms,
    colocated as colocated,
    gather as gather,
    gather_available as gather_available,
    or_default as or_default,
    pairs as pairs,
    plain as plain,
    split as split,
)
from django_delayq.brokers.redis.client.client import (
    BUDGET as BUDGET,
    Client as Client,
    ErrorFactory as ErrorFactory,
    OneServer,
    Subscription as Subscription,
    unavailable as unavailable,
)
from django_delayq.brokers.redis.client.cluster import Cluster
from django_delayq.brokers.redis.client.connections import Location as Location
from django_delayq.brokers.redis.client.errors import TransientError as TransientError
from django_delayq.brokers.redis.client.location import (
    as_written as as_written,
    embedded_directory as embedded_directory,
    hide_password as hide_password,
    parse_location as parse_location,
    stop_embedded as stop_embedded,
)


def client_of(location: Location) -> Client:
    """Return a client for a server or a cluster. It connects at its first call."""
    return Cluster(location) if location.nodes else OneServer(location)
