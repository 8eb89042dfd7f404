"""LOCATION as a dict says everything that a URL can, and what is wrong in it is told with its fix."""

import ast
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_delayq.brokers.rabbitmq import locations as rabbitmq
from django_delayq.brokers.redis.client import embedded_directory, location as locations, parse_location
from django_delayq.conf import parse_alias
from tests.docs.tables import codes, tables

_, ROWS, ROWS_OF_RABBITMQ = tables("reference/settings.md", "`LOCATION`")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Put there what the examples name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cas").mkdir()
    for name in ("ca.pem", "own.pem", "own.key"):
        (tmp_path / name).touch()
    settings.BASE_DIR = tmp_path
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://h/1"}}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_option_is_the_same_in_both_forms(row: list[str]) -> None:
    (url,), (written,) = codes(row[1]), codes(row[2])
    as_dict = ast.literal_eval(written)
    assert parse_location(parse_alias("a", {"LOCATION": as_dict}).location) == parse_location(url)


@pytest.mark.parametrize("row", ROWS_OF_RABBITMQ, ids=lambda row: row[0])
def test_each_option_of_rabbitmq_is_the_same_in_both_forms(row: list[str]) -> None:
    (url,), (written,) = codes(row[1]), codes(row[2])
    as_dict = ast.literal_eval(written)
    parsed = [rabbitmq.parse_location(parse_alias("a", {"LOCATION": each}).location) for each in (as_dict, url)]
    assert parsed[0] == parsed[1]


def test_no_option_is_left_out() -> None:
    dicts = [ast.literal_eval(codes(row[2])[0]) for row in ROWS]
    assert {name for one in dicts for name in one} == {*locations._TYPES}
    tls = [one["tls"] for one in dicts if isinstance(one.get("tls"), dict)]
    assert {name for one in tls for name in one} == {*locations._TLS}
    of_rabbitmq = [ast.literal_eval(codes(row[2])[0]) for row in ROWS_OF_RABBITMQ]
    assert {name for one in of_rabbitmq for name in one} == {*rabbitmq._DICT}


def test_paths_and_the_members_of_enums_are_taken(tmp_path: Path) -> None:
    tls = {"ca_certs": tmp_path / "ca.pem", "min_version": ssl.TLSVersion.TLSv1_3}
    options = parse_location({"host": "h", "tls": tls}).options
    assert (options["ssl_ca_certs"], options["ssl_min_version"]) == (f"{tmp_path}/ca.pem", ssl.TLSVersion.TLSv1_3)
    assert parse_location({"socket": tmp_path / "a b"}).options == {"path": f"{tmp_path}/a b"}
    assert embedded_directory({"embedded": tmp_path}) == tmp_path


def test_a_password_may_be_any_text() -> None:
    password = "p@:/?#%41&=+ ü*"
    for location in ({"host": "h"}, {"socket": "/s"}, {"cluster": ["h"]}, {"sentinels": ["h"], "name": "shop"}):
        found = parse_location({**location, "password": password})
        assert found.options["password"] == password
        assert password not in found.shown
        assert password not in repr(found)
    asked = parse_location({"sentinels": ["h"], "name": "n", "sentinel_password": password}).options["sentinels"]
    assert asked.options["password"] == password
    assert parse_location({"host": "h", "tls": {"password": password}}).options["ssl_password"] == password


def test_what_is_none_is_as_if_left_out() -> None:
    nothing: Mapping[str, Any] = dict.fromkeys(("port", "db", "username", "password", "tls"))
    assert parse_location({"host": "h", **nothing}) == parse_location("redis://h")
    assert parse_location({"host": "h", "tls": False}) == parse_location("redis://h")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ({"password": "s3cr3t"}, r'a dict with no address; give it one of "host", "socket"'),
        ({"host": "h", "socket": "/s"}, 'a dict with "host" and "socket"; give it one of'),
        ({"host": "h", "pasword": "s3cr3t"}, "no setting 'pasword': did you mean 'password'"),
        ({"host": "h", "name": "shop"}, "no setting 'name'"),
        ({"host": b"s3cr3t@h"}, r'LOCATION\["host"\] is bytes; give a str'),
        ({"host": "site:s3cr3t@h"}, r'LOCATION\["host"\] has more than "HOST:PORT" in it; a login has its own names'),
        ({"host": ""}, r'LOCATION\["host"\]'),
        ({"host": "h", "port": "6379"}, r'LOCATION\["port"\] is \'6379\'; give a number'),
        ({"host": "h", "port": True}, r'LOCATION\["port"\] is True; give a number'),
        ({"host": "h", "port": 70_000}, r"LOCATION 'redis://h:70000' can't be read; write redis://HOST:PORT/DB"),
        ({"host": "h", "db": 1.5}, r'LOCATION\["db"\] is 1.5; give a number'),
        ({"host": "h", "db": -1, "password": "s3cr3t"}, r"'redis://:\*\*\*@h/-1' must end in the number of a database"),
        ({"socket": 7}, r'LOCATION\["socket"\] is int; give a path'),
        ({"socket": "run/redis.sock"}, "names no socket; write unix:///PATH, with three slashes"),
        ({"socket": "/s", "tls": True}, "no setting 'tls'"),
        ({"host": "h", "tls": {"min_version": "1.2"}}, r'LOCATION\["tls"\]\["min_version"\] is \'1.2\'; give a number'),
        ({"host": "h", "tls": {"check_hostname": 1}}, r'\["check_hostname"\] is int; give True or False'),
        ({"host": "h", "tls": {"password": b"s3cr3t"}}, r'LOCATION\["tls"\]\["password"\] is bytes; give a str'),
        ({"cache": "none"}, "CACHES has no 'none'"),
        ({"embedded": 7}, r'LOCATION\["embedded"\] is int; give a path'),
    ],
)
def test_a_wrong_entry_names_value_and_fix(location: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message) as wrong:
        parse_location(location)
    assert "s3cr3t" not in str(wrong.value)
