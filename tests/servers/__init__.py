"""Real servers for the tests: private ones, started on demand and ended with the tests."""

from tests.servers.process import free_port, missing
from tests.servers.redis import Server, Servers, redis_binaries, scope

__all__ = ["Server", "Servers", "free_port", "missing", "redis_binaries", "scope"]
