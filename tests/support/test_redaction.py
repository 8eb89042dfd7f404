"""Passwords that an exception's text names."""

import pytest

from django_delayq.support.sanitize import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgres://shop:hunter2@db:5432/shop?a=b@c", "at postgres://shop:***@db:5432/shop?a=b@c"),
        ("redis://:hunter2@h, amqp://u:p@ss@h", "redis://:***@h, amqp://u:***@h"),
        ("('rediss://:hunter2@h/0', 'https://u:hunter2@h')", "('rediss://:***@h/0', 'https://u:***@h')"),
        ("http://h:80/ from a@b; see https://h/u:1@2", "http://h:80/ from a@b; see https://h/u:1@2"),
        ("host=h password=hunter2 user=u", "host=h password=*** user=u"),
        ("?api_key=hunter2&token=hunter2&n=1", "?api_key=***&token=***&n=1"),
        ("DB_PASSWD = 'hunter2 \\'hunter2', client_secret=b\"hunter2 hunter2\"", "DB_PASSWD = ***, client_secret=***"),
        ("{'password': 'hunter2', \"API-Key\": \"hunter2\"}", "{'password': ***, \"API-Key\": ***}"),
        ("invalid token: found '}', password='", "invalid token: found '}', password=***"),
        ("token = parse(text)", "token = parse(text)"),
        ("no secret here", "no secret here"),
    ],
)
def test_what_says_that_it_is_secret_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("part", ["://", "://a:", "password=", 'password="', "password='\"\\", "token \t", "a:b@", "x"])
def test_a_long_text_takes_no_longer_for_being_made_up(part: str) -> None:
    masked(part * 200_000)  # in quadratic time: minutes
