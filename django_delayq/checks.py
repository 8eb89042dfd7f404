"""Check settings and handlers. Each finding has an id, the reason and a hint. Only `--deploy` opens connections."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from inspect import signature
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django.utils.text import capfirst

from django_delayq.api import registry
from django_delayq.api.handlers import DEFAULT_TIMEOUT, Handler, registered_handlers
from django_delayq.api.registry import name_of
from django_delayq.brokers import DATABASE_BACKEND, broker_class, get_backend, lacks_store
from django_delayq.brokers.base import Risk
from django_delayq.calendars import find_calendar
from django_delayq.conf import Alias, alias_names, get_alias, valid_aliases
from django_delayq.core.codec import encode_data, fields_of
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.core.human_time import due_in_window_ms
from django_delayq.core.recurrence import Rule, check_comes
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.support.units import to_ms
from django_delayq.support.validation import did_you_mean


@register("delayq")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Check each alias in DELAYQ.

    - E001: a setting is wrong.
    - E002: BROKER names no broker class.
    - E003: DATABASE names no configured database.
    - E007: `mask` or `rows_for` names no function of two arguments.
    - E011: the store's database has AUTOCOMMIT off.
    - E013: a store shares its server and prefix with another alias.
    - E014: the broker carries no messages, and there is no store.
    - E015: `scrub` names no function of a text.
    - W006: `confirm` is set, which does nothing with a store.
    - W012: `sign` is set, which does nothing with a store.
    """
    try:
        names = alias_names()
    except ImproperlyConfigured as error:
        return [_wrong_setting(str(error))]
    return [*(message for name in names for message in _check_alias(name)), *_check_places()]


@register("delayq")
def check_handlers(**kwargs: Any) -> list[CheckMessage]:
    """Check each handler.

    - E004: `using` names no alias.
    - E005: the annotation of its argument is wrong.
    - E009: `concurrency_key`, `rate_key` or `share_key` names a field that its data does not have.
    - E018: `id_scope` is "all", and its alias has no store.
    - E019: it has `every`, and its alias has no store.
    - E020: it has `every`, and its data can't be None.
    - E024: it has `every` with a calendar that is not in CALENDARS.
    - E025: it has a `share_key`, and its alias has no store.
    - E021: it upgrades data of an old version, but not of every version after that.
    - W001: it is `atomic`, and its alias has no store.
    - W015: it has `every`, and nothing of that is to come.

    Wrong arguments of `delay_execute`, and two handlers with one key, raise at import.
    """
    return [message for handler in registered_handlers() for message in _check_handler(handler)]


@register("delayq")
def check_sequences(**kwargs: Any) -> list[CheckMessage]:
    """Check each sequence.

    - E022: its alias has no store.
    - E023: a step has a key without a handler in its alias.

    Wrong arguments of `Sequence` and `Step`, and two sequences with one name, raise at import.
    """
    from django_delayq.api.sequences import registered_sequences  # late: it needs the models

    return [message for sequence in registered_sequences() for message in _check_sequence(sequence)]


def _check_sequence(sequence: Any) -> Iterator[CheckMessage]:
    try:
        alias = get_alias(sequence.using)
    except ImproperlyConfigured as error:
        yield _wrong_setting(str(error))
        return
    if alias.store is None:
        yield Error(
            f"{sequence!r} is of alias {sequence.using!r}, which has no store to remember it: each start is refused.",
            hint='Set up a store ("STORE": {}).',
            obj=sequence,
            id="delayq.E022",
        )
    known = registry.by_alias.get(sequence.using, {})
    for step in sequence.steps:
        if step.key not in known and alias.options.unknown_keys == "error":
            yield Error(
                f"{sequence!r} has a step with key {step.key!r}, which has no handler: each start is refused.",
                hint=capfirst(did_you_mean(step.key, known)),
                obj=sequence,
                id="delayq.E023",
            )


@register("delayq", deploy=True)
def check_time_outs(**kwargs: Any) -> list[CheckMessage]:
    """Report I001 for each handler that is sync and has a time-out of its own, which only `--processes` can enforce.

    Only with `--deploy`, because most commands print what the other checks find, and this is no mistake.
    """
    return [
        Info(
            f"Handler {name_of(handler.func)} (key {handler.key!r}) is sync and has a time-out, which can end it only "
            "under `run_delayq --processes`.",
            hint="In a thread it is logged as overdue and runs on. Make it async, or run the worker with --processes.",
            obj=handler,
            id="delayq.I001",
        )
        for handler in registered_handlers()
        if not handler.is_async and handler.timeout_ms != to_ms(DEFAULT_TIMEOUT, "timeout")
    ]


@register("delayq", deploy=True)
def check_confirm(**kwargs: Any) -> list[CheckMessage]:
    """Report E010 for each storeless alias with `OPTIONS["confirm"]` whose broker refuses to open.

    A broker that can't confirm writes refuses. Brokers that can't be reached are skipped.
    """
    found: list[CheckMessage] = []
    for alias in valid_aliases():
        if alias.store is None and alias.options.confirm is not None:
            try:
                get_backend(alias.name).open()
            except BrokerRefused as error:
                hint = "Until it can, every send to this alias is refused."
                found.append(Error(f'DELAYQ["{alias.name}"]: {error}', hint=hint, id="delayq.E010"))
            except (BrokerUnavailable, ImproperlyConfigured):
                continue
    return found


_RISKS: Mapping[Risk, tuple[type[Error] | type[Warning], str, str, str]] = {
    Risk.PASSWORD_IN_URL: (
        Warning,
        "delayq.W007",
        "is a URL with a password, or leads to a cache with one. Django shows it in its error mails and on its debug "
        "pages.",
        'Write it as a dict, as in {"host": …, "password": …}: Django hides its "password". For a'
        " cache, put the password into its OPTIONS instead.",
    ),
    Risk.CLEARTEXT: (
        Warning,
        "delayq.W008",
        "leads to another host without TLS: who is on the way reads passwords and messages, and can change them.",
        'Use rediss:// or amqps:// ("tls": True in a dict).',
    ),
    Risk.UNVERIFIED: (
        Warning,
        "delayq.W009",
        "lets any server pass for the right one: its certificate, or the name in it, is not checked.",
        "Leave out cert_reqs and check_hostname (in a URL they begin with ssl_), and name the file of the CA: with"
        ' ?ssl_ca_certs=FILE in a URL, with "tls": {"ca_certs": FILE} in a dict.',
    ),
    Risk.DEFAULT_USER: (
        Warning,
        "delayq.W010",
        'logs in as "guest", who may do anything, and whose password everybody knows.',
        "Make a user for delayq, with permissions under its prefix only, and delete guest.",
    ),
    Risk.FOR_DEVELOPMENT: (
        Error,
        "delayq.E017",
        "is an embedded server, which is for development: nobody restarts, watches or updates it.",
        "Run a Redis server, or let the database do its work (DatabaseBroker).",
    ),
}
"""The level, the id, the reason and the fix of each risk."""


@register("delayq", Tags.security, deploy=True)
def check_locations(**kwargs: Any) -> list[CheckMessage]:
    """Check whether the LOCATION of each alias is safe in production (W007 to W010, and E017). Opens no connection."""
    found: list[CheckMessage] = []
    for alias in valid_aliases():
        try:
            risks = broker_class(alias).risks(alias)
        except ImproperlyConfigured:
            continue  # E001 or E002 reports it
        for level, id, reason, hint in (_RISKS[risk] for risk in risks):
            found.append(level(f'DELAYQ["{alias.name}"]["LOCATION"] {reason}', hint=hint, id=id))
    return found


def _check_alias(name: str) -> Iterator[CheckMessage]:
    try:
        alias = get_alias(name)
    except ImproperlyConfigured as error:
        yield _wrong_setting(str(error))
        return
    yield from _check_broker(alias)
    if alias.database not in settings.DATABASES:
        yield Error(
            f'DELAYQ["{name}"]["DATABASE"]={alias.database!r} is not in DATABASES.',
            hint=capfirst(did_you_mean(alias.database, settings.DATABASES)),
            id="delayq.E003",
        )
    elif alias.store is not None:
        yield from _check_commits(alias)
    yield from _check_hook(alias, "mask", alias.options.mask, *_MASK)
    yield from _check_hook(alias, "rows_for", alias.options.rows_for, *_ROWS_FOR)
    yield from _check_scrub(alias)
    yield from _check_calendars(alias)
    yield from _check_sign(alias)
    if alias.store is not None and alias.options.confirm is not None:
        yield Warning(
            f'DELAYQ["{name}"]["OPTIONS"]["confirm"] does nothing with a store: a message is sent once its row is.',
            hint="Leave it out. Whether a commit is on disk, or at a replica, is for the database to say (PostgreSQL: "
            "synchronous_commit).",
            id="delayq.W006",
        )


def _check_sign(alias: Alias) -> Iterator[CheckMessage]:
    if alias.store is not None and alias.options.sign:
        yield Warning(
            f'DELAYQ["{alias.name}"]["OPTIONS"]["sign"] does nothing with a store: workers run rows, and nothing that '
            "lies in Redis.",
            hint="Leave it out.",
            id="delayq.W012",
        )


def _check_places() -> Iterator[CheckMessage]:
    """Yield an error for a store that has the same server and prefix as another alias (E013).

    The workers of each alias would take messages of the other. Two aliases without a store may share a server and
    prefix: they are one queue under two names.
    """
    earlier: list[tuple[Alias, frozenset[str]]] = []
    for alias in valid_aliases():
        try:
            places = broker_class(alias).places(alias)
        except ImproperlyConfigured:
            continue  # E001 or E002 reports it
        shares = [other.name for other, its_places in earlier if places & its_places and (other.store or alias.store)]
        earlier.append((alias, places))
        if shares:
            yield Error(
                f'DELAYQ["{shares[0]}"] and DELAYQ["{alias.name}"] have the same place in LOCATION with the same '
                f"prefix {alias.options.prefix!r}, and at least one of them has a store: the workers of each would "
                "take what is the other's.",
                hint="Give one of them a prefix of its own: "
                f'DELAYQ["{alias.name}"]["OPTIONS"]["prefix"] = "{alias.options.prefix}-{alias.name}".',
                id="delayq.E013",
            )


def _check_commits(alias: Alias) -> Iterator[CheckMessage]:
    try:
        import_string(DATABASE_BACKEND).check(alias)
    except ImproperlyConfigured as error:
        yield Error(str(error), hint="Until it does, every use of the store is refused.", id="delayq.E011")


_MASK = (
    "a key and its data",
    "Until it is one, every payload is hidden in the admin. Write def mask(key: str, data: Any) -> Any.",
)
_ROWS_FOR = (
    "a user and rows",
    "Until it is one, nobody sees a message in the admin. Write def rows_for(user, rows: QuerySet) -> QuerySet.",
)


def _check_hook(alias: Alias, option: str, path: str | None, arguments: str, hint: str) -> Iterator[CheckMessage]:
    """Yield an error for an option that names no function of two arguments."""
    if path is None:
        return
    try:
        signature(import_string(path)).bind("first", "second")
    except (ImportError, TypeError, ValueError) as error:
        yield Error(
            f'DELAYQ["{alias.name}"]["OPTIONS"]["{option}"]={path!r} is no function of {arguments}: {error}.',
            hint=hint,
            id="delayq.E007",
        )


def _check_scrub(alias: Alias) -> Iterator[CheckMessage]:
    scrub = alias.options.scrub
    if scrub is None:
        return
    try:
        signature(import_string(scrub) if isinstance(scrub, str) else scrub).bind("a text")
    except (ImportError, TypeError, ValueError) as error:
        yield Error(
            f'DELAYQ["{alias.name}"]["OPTIONS"]["scrub"]={scrub!r} is no function of a text: {error}.',
            hint="Until it is one, errors and tracebacks are left out. Write def scrub(text: str) -> str.",
            id="delayq.E015",
        )


def _check_calendars(alias: Alias) -> Iterator[CheckMessage]:
    for name in alias.calendars:
        try:
            find_calendar(name)
        except ImproperlyConfigured as error:
            yield _wrong_setting(f'DELAYQ["{alias.name}"]: {error}')


def _check_broker(alias: Alias) -> Iterator[CheckMessage]:
    try:
        broker = broker_class(alias)
    except ImproperlyConfigured as error:
        yield Error(
            str(error), hint="Give the dotted path of a broker class, and install what it imports.", id="delayq.E002"
        )
        return
    if problem := lacks_store(alias):
        yield Error(problem, hint="Until it has one, every use of this alias is refused.", id="delayq.E014")
    try:
        broker.check(alias)
    except ImproperlyConfigured as error:
        yield _wrong_setting(f'DELAYQ["{alias.name}"]: {error}')


def _has_store(handler: Handler[Any, Any]) -> bool:
    try:
        return get_alias(handler.using).store is not None
    except ImproperlyConfigured:
        return True  # E001 or E004 reports it


def _check_limit_keys(handler: Handler[Any, Any], name: str) -> Iterator[CheckMessage]:
    wanted = handler.limits.fields if handler.limits else []
    wanted += [("share_key", field) for field in handler.shares.fields] if handler.shares else []
    known = fields_of(handler.data_type) if wanted else None
    if known is None:
        return
    for option, field in wanted:
        if field not in known and (field or known):
            yield Error(
                f"{name} has a {option} that names {field!r}, which is no field of its data.",
                hint=capfirst(did_you_mean(field, known)) if known else "Write {} for the data itself.",
                obj=handler,
                id="delayq.E009",
            )


def _check_shares(handler: Handler[Any, Any], name: str) -> Iterator[CheckMessage]:
    if handler.shares is not None and not _has_store(handler):
        yield Error(
            f"{name} has share_key={handler.shares.share_key!r}, but only a store can let shares take turns: each send "
            "is refused.",
            hint='Set up a store ("STORE": {}), or remove share_key.',
            obj=handler,
            id="delayq.E025",
        )


def _check_every(handler: Handler[Any, Any], name: str) -> Iterator[CheckMessage]:
    if handler.every is None:
        return
    if not _has_store(handler):
        yield Error(
            f"{name} has every=..., but without a store nothing remembers its occurrences: it never runs.",
            hint='Set up a store ("STORE": {}).',
            obj=handler,
            id="delayq.E019",
        )
    calendar = getattr(handler.every, "calendar", None)
    try:
        if isinstance(calendar, str):
            find_calendar(calendar)
    except ValueError as error:
        yield Error(
            f"{name} has every=..., whose rule can't be resolved, so it never runs: {error}",
            hint=f'Set up CALENDARS={{"{calendar}": ...}} in DELAYQ[{handler.using!r}].',
            obj=handler,
            id="delayq.E024",
        )
    else:
        yield from _check_comes(handler, name, handler.every)
    try:
        encode_data(None, handler.data_type)
    except TypeError as error:
        yield Error(
            f"{name} has every=..., so it runs without data: {error}",
            hint="Annotate the argument as Message[None], or write it with schedule_delay_message(key, data).",
            obj=handler,
            id="delayq.E020",
        )


def _check_comes(handler: Handler[Any, Any], name: str, every: Rule) -> Iterator[CheckMessage]:
    """Report a schedule that has ended, or can't begin: none but the site can say whether that is meant."""
    try:
        first = check_comes(every, handler.start, handler.until, datetime.now(UTC))
        due_in_window_ms(to_epoch_ms(first), handler.window, 0, "")  # raises if it never opens
    except (ImproperlyConfigured, ValueError) as error:
        yield Warning(
            f"{name} has every=..., by which it never runs from now on: {error}",
            hint="If that is meant, remove its every=...; then its schedule is gone, and may be removed.",
            obj=handler,
            id="delayq.W015",
        )


def _check_upgrades(handler: Handler[Any, Any], name: str) -> Iterator[CheckMessage]:
    """Report versions between the oldest that can be upgraded and the present one that have no upgrade."""
    oldest = min(handler.upgrades, default=handler.version)
    missing = [str(version) for version in range(oldest, handler.version) if version not in handler.upgrades]
    if missing:
        yield Error(
            f"{name} upgrades data from version {oldest}, but not from {', '.join(missing)}: messages would fail.",
            hint=f"Write @....upgrade(from_version={missing[0]}), or remove the upgrades of older versions.",
            obj=handler,
            id="delayq.E021",
        )


def _wrong_setting(text: str) -> CheckMessage:
    return Error(text, hint="The reference of settings in the docs lists them all.", id="delayq.E001")


def _check_handler(handler: Handler[Any, Any]) -> Iterator[CheckMessage]:
    name = f"Handler {name_of(handler.func)} (key {handler.key!r})"
    try:
        aliases = alias_names()
    except ImproperlyConfigured:
        aliases = [handler.using]  # E001 reports it
    if handler.using not in aliases:
        yield Error(
            f"{name} has using={handler.using!r}, which is not in DELAYQ.",
            hint=capfirst(did_you_mean(handler.using, aliases)),
            obj=handler,
            id="delayq.E004",
        )
    try:
        handler.data_type  # noqa: B018  resolves the annotation
    except TypeError as error:
        yield Error(
            str(error),
            hint="Annotate the argument as Message[T]; T and Message must be importable where the handler is.",
            obj=handler,
            id="delayq.E005",
        )
    else:
        yield from _check_limit_keys(handler, name)
        yield from _check_shares(handler, name)
        yield from _check_every(handler, name)
    yield from _check_upgrades(handler, name)
    if handler.atomic and not _has_store(handler):
        yield Warning(
            f"{name} is atomic, but without a store its transaction and the end of its message are two things.",
            hint='It may run a second time after its commit: make it idempotent, or set up a store ("STORE": {}).',
            obj=handler,
            id="delayq.W001",
        )
    if handler.id_scope == "all" and not _has_store(handler):
        yield Error(
            f'{name} has id_scope="all", but without a store nothing that has ended is kept: each send with an id is '
            "refused.",
            hint='Set up a store ("STORE": {}), or leave id_scope out.',
            obj=handler,
            id="delayq.E018",
        )
