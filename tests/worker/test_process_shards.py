"""Many workers over many shards: some are killed, one is frozen and one joins, amid a load."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.scale import scaled
from tests.servers.redis import Server
from tests.worker.fire import HELD, LEAST_GAP_S, MIXES, Trace, burn, site_on, wrong_runs
from tests.worker.processes import Site

LOAD = scaled(1_000)
PLACES = ["one server", "cluster"] if scaled(100) > 100 else ["one server"]  # each takes seconds


@pytest.fixture(params=PLACES)
def location(request: pytest.FixtureRequest) -> str:
    """Return where the shards are."""
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


DEAD, KILLED, KILLED_TOO, OTHER, FROZEN = range(5)


@pytest.mark.parametrize("then", [KILLED_TOO, OTHER, FROZEN])
def test_the_account_allows_one_message_of_a_killed_process_to_run_again(then: int) -> None:
    runs = [Trace(1, KILLED, 0, 4.0), Trace(2, KILLED, 0, 4.1), Trace(1, then, 0, 5.0)]
    killed_at = {KILLED: 4.2, KILLED_TOO: 6.0}
    assert list(wrong_runs(runs, [FROZEN], killed_at, {})) == []
    runs.append(Trace(2, then, 0, 5.1))
    assert list(wrong_runs(runs, [FROZEN], killed_at, {})) == [f"2 messages of the killed process {KILLED} ran again"]


def test_what_a_killed_process_took_over_from_the_dead_is_none_of_its_own_in_the_account() -> None:
    runs = [Trace(1, DEAD, 0, 4.0), Trace(2, DEAD, 0, 4.1), Trace(1, KILLED, 0, 4.3), Trace(2, KILLED, 0, 4.4)]
    assert list(wrong_runs(runs, [], {KILLED: 4.5}, {DEAD: 4.2})) == []


@pytest.mark.parametrize("first", [DEAD, KILLED, OTHER])
@pytest.mark.parametrize("then", [DEAD, KILLED, OTHER])
def test_the_account_allows_no_second_run_before_the_lease_ran_out_or_the_process_died(first: int, then: int) -> None:
    runs = [Trace(7, first, 0, 4), Trace(7, then, 0, 4 + LEAST_GAP_S / 2)]
    assert list(wrong_runs(runs, [], {KILLED: 5.0}, {DEAD: 5.0})) == ["Message 7 ran again after 0.200 s"]


def test_the_soak_sets_up_what_it_takes_of_the_worker() -> None:
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = "from tests import soak; print(soak.set_up_fire().__name__)"
    done = subprocess.run([sys.executable, "-c", command], env=env, check=False, capture_output=True, text=True)
    assert done.stdout == "tests.worker.fire\n", done.stderr
