"""`cache:<alias>`: the address and TLS options of a Redis cache in CACHES, of django-redis or of Django itself.

Only where the server is and how to log in are taken. The pool, the time-outs, the serializer and the prefix are the
cache's own business.
"""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_BACKENDS = ("django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache")


def cache_address(alias: str) -> tuple[str, dict[str, Any]]:
    """Return the URL of the server that cache `alias` writes to, and the options that go with it.

    Raises `ImproperlyConfigured`, naming the value and the fix, for a cache that is no single Redis server.
    """
    caches: Mapping[str, Mapping[str, Any]] = settings.CACHES
    where = f'LOCATION "cache:{alias}"'
    if alias not in caches:
        raise ImproperlyConfigured(f"{where}: CACHES has no {alias!r}; it has: {', '.join(sorted(caches)) or 'none'}.")
    cache = caches[alias]
    if cache.get("BACKEND") not in _BACKENDS:
        raise ImproperlyConfigured(
            f"{where}: CACHES[{alias!r}] is a {cache.get('BACKEND')!r}; name a Redis cache ({' or '.join(_BACKENDS)}), "
            f"or give the server's URL."
        )
    options: Mapping[str, Any] = cache.get("OPTIONS", {})
    if "SENTINELS" in options:
        raise ImproperlyConfigured(f"{where}: Redis Sentinel is not supported; give the URL of one server.")
    return _first_server(cache.get("LOCATION", "")), _login_and_tls(options)


def _first_server(location: str | list[str] | tuple[str, ...]) -> str:
    servers = location.replace(";", ",").split(",") if isinstance(location, str) else list(location)
    return servers[0].strip() if servers else ""  # both backends write to the first; the others are replicas


def _login_and_tls(options: Mapping[str, Any]) -> dict[str, Any]:
    # django-redis has the login in capitals and the rest in CONNECTION_POOL_KWARGS; Django has all of it flat.
    flat = {**options, **options.get("CONNECTION_POOL_KWARGS", {})}
    for name in ("USERNAME", "PASSWORD"):
        if flat.get(name):
            flat.setdefault(name.lower(), flat[name])
    taken = {name: value for name, value in flat.items() if name.startswith("ssl_") or name in _LOGIN}
    return {name: value for name, value in taken.items() if value is not None}


_LOGIN = ("db", "username", "password", "credential_provider")
