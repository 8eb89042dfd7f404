"""DELAYQ in the settings: defaults, conversions, and errors that name the setting, the value and the fix."""

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_delayq.conf import Alias, Options, Store, alias_names, get_alias, parse_alias, valid_aliases


def test_an_empty_alias_has_the_defaults_of_the_docs() -> None:
    assert parse_alias("default", {}) == Alias(
        name="default",
        broker="django_delayq.brokers.redis.RedisBroker",
        location="redis://127.0.0.1:6379/0",
        database="default",
        store=Store(),
        options=Options(
            prefix="delayq",
            shards=1,
            lease=15_000,
            max_data=262_144,
            unknown_keys="error",
            error_retention=2_592_000_000,
            error_max=100_000,
        ),
    )


def test_without_delayq_in_the_settings_there_is_one_alias(settings: Settings) -> None:
    settings.DELAYQ = {}  # tells what remembers settings to forget them: deleting them does not
    del settings.DELAYQ
    assert alias_names() == ["default"]
    assert get_alias() == parse_alias("default", {})


def test_lengths_and_sizes_are_converted() -> None:
    options = {"lease": "30s", "max_data": "1MiB", "error_retention": "1d", "error_max": 0, "unknown_keys": "allow"}
    assert parse_alias("a", {"STORE": None, "OPTIONS": options}).options == Options(
        lease=30_000, max_data=1_048_576, error_retention=86_400_000, error_max=0, unknown_keys="allow"
    )


@pytest.mark.parametrize(
    ("size", "octets"),
    [(1, 1), ("512B", 512), ("256KiB", 262_144), ("2 MiB", 2_097_152), ("512MB", 512 * 10**6), ("1.5gib", 3 * 2**29)],
)
def test_sizes_are_bytes_or_text(size: Any, octets: int) -> None:
    assert parse_alias("a", {"OPTIONS": {"max_data": size}}).options.max_data == octets


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ([], r'DELAYQ\["a"\] is list; make it a dict'),
        ({"BORKER": "x"}, r"DELAYQ\[\"a\"\] has no setting 'BORKER': did you mean 'BROKER'\?"),
        ({"BROKER": "redis"}, r'DELAYQ\["a"\]\["BROKER"\]=\'redis\' is no dotted path'),
        ({"BROKER": "not a.path"}, r'\["BROKER"\]=\'not a.path\' is no dotted path'),
        ({"BROKER": None}, r'\["BROKER"\] is NoneType; give a str'),
        ({"LOCATION": ""}, r'\["LOCATION"\] is empty; leave it out for the default'),
        ({"DATABASE": 1}, r'\["DATABASE"\] is int; give a str'),
        ({"STORE": []}, r'\["STORE"\] is list; make it a dict'),
        ({"STORE": {"RETENTOIN": "1h"}}, r"\[\"STORE\"\] has no setting 'RETENTOIN': did you mean 'RETENTION'\?"),
        ({"OPTIONS": None}, r'\["OPTIONS"\] is NoneType; make it a dict'),
        ({"OPTIONS": {"leese": 1}}, r"\[\"OPTIONS\"\] has no setting 'leese': did you mean 'lease'\?"),
        ({"OPTIONS": {"SHARDS": 2}}, r"has no setting 'SHARDS': did you mean 'shards'\?"),
        ({"options": {}}, r"has no setting 'options': did you mean 'OPTIONS'\?"),
        ({"STORE": False}, r'\["STORE"\] is bool; make it a dict, or None for no store'),
        ({"OPTIONS": {"error_max": 10**12}}, r'\["error_max"\]=1000000000000 is too large; give 1000000000 or less'),
        ({"OPTIONS": {"max_data": "1.5"}}, r"is no size; give bytes, .*\(B, KB, KiB, MB, MiB, GB, GiB\)"),
        ({"OPTIONS": {"prefix": "a{b}"}}, r'\["prefix"\]=\'a{b}\' contains a brace'),
        ({"OPTIONS": {"prefix": ""}}, r'\["prefix"\]=\'\' is empty'),
        ({"OPTIONS": {"prefix": "a\n"}}, r'\["prefix"\]=.* leave out control characters'),
        ({"OPTIONS": {"confirm": "disk"}}, r"""\["confirm"\]='disk' is neither 'replica' nor 'fsync'"""),
        ({"OPTIONS": {"shards": 0}}, r'\["shards"\]=0 is too small; give 1 or more'),
        ({"OPTIONS": {"shards": 1001}}, r'\["shards"\]=1001 is too large; give 1000 or less'),
        ({"OPTIONS": {"shards": True}}, r'\["shards"\]=True is bool; give a whole number'),
        ({"OPTIONS": {"lease": "0.5s"}}, r"\[\"lease\"\]='0.5s' is too short; give 1s or more"),
        ({"OPTIONS": {"lease": -1}}, r'\["lease"\]=-1 is too short; give 1s or more'),
        ({"OPTIONS": {"lease": "soon"}}, r'\["lease"\]=\'soon\' is no length of time'),
        ({"OPTIONS": {"max_data": "lots"}}, r'\["max_data"\]=\'lots\' is no size; give bytes, or text'),
        ({"OPTIONS": {"max_data": 0}}, r'\["max_data"\]=0 lets no data through'),
        ({"OPTIONS": {"max_data": True}}, r'\["max_data"\]=True is no size'),
        ({"OPTIONS": {"unknown_keys": "ignore"}}, r'\["unknown_keys"\]=\'ignore\' is neither'),
        ({"OPTIONS": {"error_max": -1}}, r'\["error_max"\]=-1 is too small'),
        ({"OPTIONS": {"mask": "mask"}}, r'\["mask"\]=\'mask\' is no dotted path to a function'),
        ({"OPTIONS": {"rows_for": "a b.c"}}, r'\["rows_for"\]=\'a b.c\' is no dotted path to a function'),
        ({"OPTIONS": {"error_retention": -1}}, r'\["error_retention"\]=-1 is too short; give 0 or more'),
    ],
)
def test_a_wrong_setting_is_named_with_its_fix(configured: Any, message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message):
        parse_alias("a", configured)


def test_no_name_is_the_default_alias_and_an_empty_one_is_wrong(settings: Settings) -> None:
    settings.DELAYQ = {"reports": {}, "default": {}}
    assert get_alias().name == get_alias(None).name == "default"
    with pytest.raises(ImproperlyConfigured, match="DELAYQ has no alias ''"):
        get_alias("")


def test_an_unknown_alias_is_an_error_that_offers_the_nearest(settings: Settings) -> None:
    settings.DELAYQ = {"reports": {}}
    with pytest.raises(ImproperlyConfigured, match=r"DELAYQ has no alias 'report': did you mean 'reports'\?"):
        get_alias("report")


def test_delayq_must_be_a_dict(settings: Settings) -> None:
    settings.DELAYQ = ["default"]
    with pytest.raises(ImproperlyConfigured, match=r"^DELAYQ is list; make it a dict"):
        get_alias()


@pytest.mark.parametrize(
    ("delayq", "names"), [({"a": {}, "b": {"STOER": {}}, "c": None, "d": {}}, ["a", "d"]), (["default"], [])]
)
def test_the_aliases_that_can_be_read_come_in_their_order(settings: Settings, delayq: Any, names: list[str]) -> None:
    settings.DELAYQ = delayq
    assert [alias.name for alias in valid_aliases()] == names


def test_changed_settings_are_read_again(settings: Settings) -> None:
    before = get_alias()
    settings.DELAYQ = {"default": {"OPTIONS": {"prefix": "changed"}}}
    assert before.options.prefix != get_alias().options.prefix == "changed"


def test_a_password_in_the_location_is_not_in_the_repr() -> None:
    assert "secret" not in repr(parse_alias("a", {"LOCATION": "redis://:secret@redis/0"}))


@pytest.mark.parametrize(
    ("delayq", "message"),
    [
        ("redis://:secret@redis/0", "DELAYQ is str; make it a dict"),
        ({"default": "redis://:secret@redis/0"}, "is str; make it a dict"),
        ({"default": {"BROKER": "redis://:secret@redis/0"}}, r'\["BROKER"\] is an address; .* belongs in "LOCATION"'),
        ({"default": {"BROKER": "redis:secret"}}, r'\["BROKER"\] is an address; .* belongs in "LOCATION"'),
        ({"default": {"DATABASE": "postgres://u:secret@h/d"}}, r'\["DATABASE"\] is an address'),
    ],
)
def test_a_password_in_the_wrong_place_is_not_in_the_error(settings: Settings, delayq: Any, message: str) -> None:
    settings.DELAYQ = delayq
    with pytest.raises(ImproperlyConfigured, match=message) as raised:
        get_alias()
    assert "secret" not in str(raised.value)
