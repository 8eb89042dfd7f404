"""Wrong TLS options are told at once, and not taken for an outage that passes."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_delayq.brokers.redis.client import parse_location


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("ssl_certfile=/nope.pem", "ssl_certfile='/nope.pem', which is no file here; give the path of one"),
        ("ssl_keyfile=/nope.pem", "ssl_keyfile='/nope.pem', which is no file"),
        ("ssl_ca_certs=/", "ssl_ca_certs='/', which is no file"),
        ("ssl_ca_path=/nope", "ssl_ca_path='/nope', which is no directory"),
        ("ssl_cert_reqs=bogus", "ssl_cert_reqs='bogus'; give none, optional or required"),
        ("ssl_min_version=7", "ssl_min_version='7'; give 771 (TLSv1_2) or 772 (TLSv1_3)"),
        ("ssl_ciphers=bogus", "ssl_ciphers='bogus'; give a list that OpenSSL knows"),
    ],
)
def test_an_option_that_no_connection_can_use_is_named_with_its_fix(query: str, wrong: str) -> None:
    with pytest.raises(ImproperlyConfigured) as raised:
        parse_location(f"rediss://:hush@h/0?{query}")
    assert f"LOCATION 'rediss://:***@h/0?{query}' has {wrong}" in str(raised.value)


def test_options_that_can_work_are_taken(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    query = f"ssl_ca_certs={tmp_path}/ca.pem&ssl_ca_path={tmp_path}&ssl_cert_reqs=optional&ssl_min_version=772"
    options = parse_location(f"rediss://h/0?{query}&ssl_ciphers=HIGH").options
    assert options["ssl_ca_certs"] == f"{tmp_path}/ca.pem"
