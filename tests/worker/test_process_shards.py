"""Many workers over many shards: some are killed, one is frozen and one joins, amid a load."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.scale import scaled
from tests.servers.redis import Server
from tests.worker.fire import HELD, MIXES, burn, site_on
from tests.worker.processes import Site

LOAD = scaled(1_000)
PLACES = ["one server", "cluster"] if scaled(100) > 100 else ["one server"]  # each takes seconds


@pytest.fixture(params=PLACES)
def location(request: pytest.FixtureRequest) -> str:
    """Where the shards are."""
    if request.param == "cluster":
        return str(request.getfixturevalue("redis_cluster").location)
    return str(request.getfixturevalue("redis_url"))


@pytest.fixture
def site(location: str, redis_server: Server, process_env: dict[str, str]) -> Iterator[Site]:
    with site_on(location, process_env, redis_server.directory) as site:
        yield site


def test_amid_workers_that_die_join_and_freeze_each_message_runs_once_unless_a_lease_ran_out(site: Site) -> None:
    account = burn(site, LOAD, MIXES["both"])
    assert account.wrong == []
    assert account.sent == account.finished == LOAD + len(HELD)
    assert account.reclaimed >= 2  # what the first worker held, and the frozen one


def test_the_soak_sets_up_what_it_takes_of_the_worker() -> None:
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = "from tests import soak; print(soak.set_up_fire().__name__)"
    done = subprocess.run([sys.executable, "-c", command], env=env, check=False, capture_output=True, text=True)
    assert done.stdout == "tests.worker.fire\n", done.stderr
