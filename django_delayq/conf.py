"""Read the setting DELAYQ into frozen dataclasses, which define all its defaults."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_delayq.core.human_time import check_dates
from django_delayq.support.sanitize import Scrub
from django_delayq.support.timestamps import DAY_MS
from django_delayq.support.units import to_bytes, to_ms
from django_delayq.support.validation import check_count, check_name, did_you_mean, short_repr

DEFAULT_ALIAS = "default"
DEFAULT_QUEUE = "default"
BROKER = "django_delayq.brokers.redis.RedisBroker"
LOCATION = "redis://127.0.0.1:6379/0"
HOLIDAYS = "holidays:"
"""How a calendar begins that is one of the library `holidays`."""
_SETTINGS = ("BROKER", "LOCATION", "DATABASE", "STORE", "OPTIONS", "CALENDARS")
MOST_SHARDS = 1_000
"""The most shards of an alias. A waiting worker polls each of them, on a single server once a second."""
MOST_ERRORS = 10**9
"""The highest `error_max`: more failed messages than a Redis has room for."""


@dataclass(frozen=True, slots=True)
class Options:
    """The `OPTIONS` of one alias. Lengths of time are in ms, sizes in bytes."""

    prefix: str = "delayq"
    shards: int = 1
    confirm: str | None = None  # or "replica", "fsync"
    sign: bool | str = False  # or True, "send"
    lease: int = 15_000
    max_data: int = 256 * 1024
    unknown_keys: str = "error"  # or "allow"
    error_retention: int = 30 * DAY_MS
    error_max: int = 100_000
    mask: str | None = None  # the dotted path of the function that masks payloads in the admin
    scrub: str | Scrub | None = None  # the function, or its dotted path, that cleans errors and tracebacks
    rows_for: str | None = None  # the dotted path of the function that narrows the admin's rows to those of a user


@dataclass(frozen=True, slots=True)
class Store:
    """The `STORE` of one alias. Lengths of time are in ms."""

    degraded_after: int = 10_000
    retention: int | None = 30 * DAY_MS
    failed_retention: int | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """The settings of one alias: an entry of DELAYQ, with the defaults filled in."""

    name: str
    broker: str = BROKER
    location: str | Mapping[str, Any] = field(default=LOCATION, repr=False)  # it may hold a password
    database: str = "default"
    store: Store | None = Store()
    options: Options = Options()
    calendars: Mapping[str, frozenset[date] | str] = field(default_factory=dict)  # by name: calendars.py reads them

    @property
    def broker_name(self) -> str:
        """Return the name of the broker's class, without its module."""
        return self.broker.rpartition(".")[2]


def get_alias(name: str | None = None) -> Alias:
    """Return the settings of one alias; without a name, of the default alias.

    Raises `ImproperlyConfigured`, naming the value and the fix.
    """
    name = DEFAULT_ALIAS if name is None else name
    alias = _cache.get(name)
    if alias is None:
        configured = _configured()
        if name not in configured:
            raise ImproperlyConfigured(f"DELAYQ has no alias {name!r}: {did_you_mean(str(name), configured)}")
        alias = _cache[name] = parse_alias(name, configured[name])
    return alias


def alias_names() -> list[str]:
    """Return the names of the configured aliases, in the order of the settings."""
    return list(_configured())


def valid_aliases() -> Iterator[Alias]:
    """Yield the aliases with valid settings, in the order of the settings. The system checks report the others."""
    try:
        names = alias_names()
    except ImproperlyConfigured:
        return
    for name in names:
        try:
            alias = get_alias(name)
        except ImproperlyConfigured:
            continue
        yield alias


def scrubs() -> Sequence[Scrub]:
    """Return the functions in `OPTIONS["scrub"]` of all aliases, because a log line belongs to no alias.

    Raises `ImportError` for a function that can't be imported.
    """
    global _scrubs
    if _scrubs is None:
        named = dict.fromkeys(alias.options.scrub for alias in valid_aliases() if alias.options.scrub is not None)
        _scrubs = [import_string(each) if isinstance(each, str) else each for each in named]
    return _scrubs


def parse_alias(name: str, configured: object) -> Alias:
    """Parse one entry of DELAYQ. Raises `ImproperlyConfigured`, naming the setting, the value and the fix."""
    path = f'DELAYQ["{name}"]'
    settings_of_alias = _mapping(path, configured, _SETTINGS)
    return Alias(
        name=name,
        broker=_dotted_path(f'{path}["BROKER"]', settings_of_alias.get("BROKER", BROKER)),
        location=_location(f'{path}["LOCATION"]', settings_of_alias.get("LOCATION", LOCATION)),
        database=_public_text(f'{path}["DATABASE"]', settings_of_alias.get("DATABASE", "default")),
        store=_parse_store(f'{path}["STORE"]', settings_of_alias.get("STORE", {})),
        options=_parse_options(f'{path}["OPTIONS"]', settings_of_alias.get("OPTIONS", {})),
        calendars=_parse_calendars(f'{path}["CALENDARS"]', settings_of_alias.get("CALENDARS", {})),
    )


def _configured() -> Mapping[str, object]:
    configured = getattr(settings, "DELAYQ", {DEFAULT_ALIAS: {}})
    if not isinstance(configured, Mapping):
        raise ImproperlyConfigured(f"DELAYQ is {type(configured).__name__}; make it a dict.")
    for name in _SETTINGS:
        if name in configured:
            raise ImproperlyConfigured(
                f'DELAYQ["{name}"] is a setting of an alias; write DELAYQ = {{"{DEFAULT_ALIAS}": {{"{name}": ...}}}}.'
            )
    return configured


def _parse_store(path: str, configured: object) -> Store | None:
    if configured is None:
        return None
    if not isinstance(configured, Mapping):
        raise ImproperlyConfigured(f"{path} is {type(configured).__name__}; make it a dict, or None for no store.")
    parsed = _parse(path, configured, _STORE_PARSERS)
    return Store(**{name.lower(): value for name, value in parsed.items()})


def _parse_options(path: str, configured: object) -> Options:
    return Options(**_parse(path, configured, _OPTION_PARSERS))


def _parse_calendars(path: str, configured: object) -> Mapping[str, frozenset[date] | str]:
    if not isinstance(configured, Mapping):
        raise ImproperlyConfigured(f"{path} is {type(configured).__name__}; make it a dict.")
    try:
        for name in configured:
            check_name(name, f"a name in {path}")
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(str(error)) from error
    return _parse(path, configured, dict.fromkeys(configured, _calendar))


def _parse(path: str, configured: object, parsers: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
    parsed = {}
    for name, value in _mapping(path, configured, parsers).items():
        try:
            parsed[name] = parsers[name](f'{path}["{name}"]', value)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from error
    return parsed


def _mapping(path: str, value: object, known: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"{path} is {type(value).__name__}; make it a dict.")
    known = tuple(known)
    for name in value:
        if name not in known:
            raise ImproperlyConfigured(f"{path} has no setting {name!r}: {did_you_mean(str(name), known)}")
    return value


def _text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise ImproperlyConfigured(f"{path} is {type(value).__name__}; give a str.")
    if not value:
        raise ImproperlyConfigured(f"{path} is empty; leave it out for the default.")
    return value


def _location(path: str, value: object) -> str | Mapping[str, Any]:
    """Return the location, which is text or a dict. The broker checks what is in it."""
    return value if isinstance(value, Mapping) else _text(path, value)


def _public_text(path: str, value: object) -> str:
    """Return text that errors may show. Refuse an address, because it may hold a password."""
    text = _text(path, value)
    if "@" in text or ":" in text:
        raise ImproperlyConfigured(f'{path} is an address; the one of the broker belongs in "LOCATION".')
    return text


def _dotted_path(path: str, value: object, what: str = f"broker class, such as {BROKER!r}") -> str:
    text = _public_text(path, value)
    if not all(part.isidentifier() for part in text.split(".")) or "." not in text:
        raise ImproperlyConfigured(f"{path}={text!r} is no dotted path to a {what}.")
    return text


def _hook(path: str, value: object) -> str | None:
    return None if value is None else _dotted_path(path, value, "function, such as 'shop.privacy.mask'")


def _calendar(path: str, value: object) -> frozenset[date] | str:
    if isinstance(value, str):
        if value.startswith(HOLIDAYS):
            return value
        if ":" in value:
            raise ValueError(f"{path}={short_repr(value)} has a colon; write 'holidays:IT', or the path of a function.")
        return _dotted_path(path, value, "function of a date, nor like 'holidays:IT'")
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(f"{path} is {type(value).__name__}; give dates, 'holidays:IT', or the path of a function.")
    dates = [_date(path, each) for each in value]
    check_dates(dates, path)
    return frozenset(dates)


def _date(path: str, value: Any) -> date:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{path} has {short_repr(value)}; write dates like '2026-12-25'.") from error


def _scrub(path: str, value: Any) -> str | Scrub | None:
    if value is None or (callable(value) and not isinstance(value, str)):
        return value
    return _dotted_path(path, value, "function, such as 'shop.privacy.scrub'")


def _prefix(path: str, value: Any) -> str:
    prefix = check_name(value, path)
    if "{" in prefix or "}" in prefix:
        raise ValueError(f"{path}={prefix!r} contains a brace, which Redis Cluster reads; leave it out.")
    return prefix


def _confirm(path: str, value: Any) -> str | None:
    if value not in (None, "replica", "fsync"):
        raise ValueError(
            f"{path}={short_repr(value)} is neither 'replica' nor 'fsync'; leave it out to wait for neither."
        )
    return None if value is None else str(value)


def _sign(path: str, value: Any) -> bool | str:
    if value is not True and value is not False and value != "send":
        raise ValueError(
            f"{path}={short_repr(value)} is neither True, nor False, nor 'send', which signs and lets workers run what "
            "is not signed."
        )
    return bool(value) if isinstance(value, bool) else "send"


def _size(path: str, value: Any) -> int:
    size = to_bytes(value, path)
    if size < 1:
        raise ValueError(f"{path}={short_repr(value)} lets no data through; give at least 1 byte.")
    return size


def _unknown_keys(path: str, value: Any) -> str:
    if value not in ("error", "allow"):
        raise ValueError(f"{path}={short_repr(value)} is neither 'error' nor 'allow'.")
    return str(value)


_OPTION_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "prefix": _prefix,
    "shards": lambda path, value: check_count(value, path, most=MOST_SHARDS),
    "confirm": _confirm,
    "sign": _sign,
    "lease": lambda path, value: to_ms(value, path, least_ms=1_000),  # a shorter one can't be renewed in time
    "max_data": _size,
    "unknown_keys": _unknown_keys,
    "error_retention": lambda path, value: to_ms(value, path),
    "error_max": lambda path, value: check_count(value, path, least=0, most=MOST_ERRORS),
    "mask": _hook,
    "rows_for": _hook,
    "scrub": _scrub,
}
_STORE_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "DEGRADED_AFTER": lambda path, value: to_ms(value, path),
    "RETENTION": lambda path, value: None if value is None else to_ms(value, path),
    "FAILED_RETENTION": lambda path, value: None if value is None else to_ms(value, path),
}
_cache: dict[str, Alias] = {}
_scrubs: Sequence[Scrub] | None = None


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _scrubs
    if setting == "DELAYQ":
        _cache.clear()
        _scrubs = None


setting_changed.connect(_forget, dispatch_uid="delayq.conf")
