"""The Redis client: run operations on a server, on a primary behind sentinels, or on a cluster.

The rest of the Redis backend imports this door only, and nothing behind it knows what the calls are for.
"""

from django_delayq.brokers.redis.client.calls import (
    Argument as Argument,
    Call as Call,
    Operation as Operation,
    Replies as Replies,
    Reply as Reply,
    Script as Script,
    SkipUnavailable as SkipUnavailable,
    colocated as colocated,
    gather as gather,
    gather_available as gather_available,
    or_default as or_default,
    plain as plain,
    split as split,
)
from django_delayq.brokers.redis.client.client import Client as Client
from django_delayq.brokers.redis.client.errors import TransientError as TransientError
from django_delayq.brokers.redis.client.location import (
    Location as Location,
    embedded_directory as embedded_directory,
    hide_password as hide_password,
    parse_location as parse_location,
    stop_embedded as stop_embedded,
)
from django_delayq.brokers.redis.client.transport import (
    BUDGET as BUDGET,
    ErrorFactory as ErrorFactory,
    Subscription as Subscription,
)
