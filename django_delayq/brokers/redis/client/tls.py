"""Find TLS options that can't work before redis-py does, which finds them at each connect, as if Redis were away."""

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured

_PLACES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "ssl_keyfile": (os.path.isfile, "file"),
    "ssl_certfile": (os.path.isfile, "file"),
    "ssl_ca_certs": (os.path.isfile, "file"),
    "ssl_ca_path": (os.path.isdir, "directory"),
}
_CERT_REQS = ("none", "optional", "required")
_VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def check_tls(options: Mapping[str, Any], shown: str) -> None:
    """Raise `ImproperlyConfigured`, naming the option and the fix, for options that no connection could use."""
    for name, (is_there, kind) in _PLACES.items():
        path = options.get(name)
        if path is not None and not is_there(path):
            raise _wrong(shown, name, path, f", which is no {kind} here; give the path of one")
    needed = options.get("ssl_cert_reqs")
    if isinstance(needed, str) and needed not in _CERT_REQS:
        raise _wrong(shown, "ssl_cert_reqs", needed, f"; give {', '.join(_CERT_REQS[:-1])} or {_CERT_REQS[-1]}")
    version = options.get("ssl_min_version")
    if version is not None and version not in _VERSIONS:
        fix = " or ".join(f"{each.value} ({each.name})" for each in _VERSIONS)
        raise _wrong(shown, "ssl_min_version", version, f"; give {fix}")
    _check_ciphers(options.get("ssl_ciphers"), shown)


def _check_ciphers(ciphers: str | None, shown: str) -> None:
    if ciphers:
        try:
            ssl.create_default_context().set_ciphers(ciphers)
        except ssl.SSLError:
            raise _wrong(shown, "ssl_ciphers", ciphers, "; give a list that OpenSSL knows") from None


def _wrong(shown: str, name: str, value: object, fix: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"LOCATION {shown!r} has {name}={str(value)!r}{fix}.")
