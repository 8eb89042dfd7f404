"""Check a LOCATION that is a dict, find a password in a URL, and recognize this machine, alike for all brokers."""

import os
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables

from django_delayq.support.validation import did_you_mean

Types = Mapping[str, tuple[type, ...]]
"""The names that a dict may have, and the types of their values."""

_WANTED: Mapping[type, str] = {
    str: "a str",
    os.PathLike: "a path",
    int: "a number",
    bool: "True or False",
}


@sensitive_variables()
def checked(where: str, given: Mapping[Any, Any], types: Types, tls: Collection[str] = ()) -> dict[str, Any]:
    """Return `given` without the values that are None. `tls` lists the names that its dict of TLS options may have.

    Raises `ImproperlyConfigured` for an unknown name, or a value of a wrong type.
    """
    for name, value in given.items():
        if name not in types:
            raise ImproperlyConfigured(f"{where} has no setting {name!r}: {did_you_mean(str(name), list(types))}")
        kinds = types[name]
        if value is None or (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))):
            continue
        if list in kinds:
            raise no_hosts(name)
        wanted = f"True, or a dict of {', '.join(tls)}" if Mapping in kinds else _WANTED[kinds[-1]]
        said = repr(value) if kinds == (int,) else type(value).__name__  # a value of another type may be a secret
        raise ImproperlyConfigured(f'{where}["{name}"] is {said}; give {wanted}.')
    return {name: value for name, value in given.items() if value is not None}


def no_hosts(name: str) -> ImproperlyConfigured:
    """Return the error for a value that is no list of addresses."""
    return ImproperlyConfigured(f'LOCATION["{name}"] is no list of "HOST:PORT"; give the addresses of some.')


def is_this_machine(host: str) -> bool:
    """Return whether a host is the machine that asks, by its name alone."""
    if host in ("", "localhost") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def has_password(location: object) -> bool:
    """Return whether a LOCATION, which must be valid, is a URL with a password in it."""
    if not isinstance(location, str):
        return False
    parts = urlsplit(location)
    return bool(parts.password) or any(name.endswith("password") for name, _ in parse_qsl(parts.query))
