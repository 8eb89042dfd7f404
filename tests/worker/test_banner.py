"""What a worker says when it starts."""

from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import ServerReport
from django_delayq.conf import Alias, Store
from django_delayq.worker.banner import banner
from django_delayq.worker.options import Options, served_queues
from tests.worker.rig import make_handler


def sync(message: Message[Any]) -> None: ...


async def tasks(message: Message[Any]) -> None: ...


def lines(**options: Any) -> list[str]:
    """The banner of a site with two sync handlers and an async one."""
    handlers = [
        make_handler(sync, "mail.send", queue="mail"),
        make_handler(sync, "report.build", queue="reports", concurrency=1),
        make_handler(tasks, "page.fetch", concurrency=10),
    ]
    report = ServerReport("a server", "nothing is lost", [], [])
    by_key = {handler.key: handler for handler in handlers}
    return banner(Alias("default", store=None), report, by_key, Options(**options))


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        # 4 of the broker's own, 5 slots, 10 tasks, the suspects' child; each slot, the event loop, that child
        ({}, "20 to the broker (4 while no handler sends), 7 to each database"),
        ({"max_threads": 3}, "18 to the broker (4 while no handler sends), 5 to each database"),
        # 4 of each worker and 2 of the supervisor, a slot each, 5 tasks each, a suspects' child each
        (
            {"processes": 2, "threads": 1, "max_threads": 1},
            "24 to the broker (10 while no handler sends), 6 to each database",
        ),
    ],
    ids=["threads", "few threads", "processes"],
)
def test_it_says_how_many_connections_there_are_at_most(options: dict[str, int], numbers: str) -> None:
    assert f"Connections at most: {numbers}" in lines(**options)


def test_a_handler_of_a_queue_that_is_not_served_has_no_line() -> None:
    text = "\n".join(lines(queues=served_queues("mail")))
    assert "mail.send: queue mail, thread, 4 at once" in text
    assert "report.build" not in text
    assert "page.fetch" not in text
    assert "and what is sent into these queues for 2 handler(s) of other queues" in text


def test_a_queue_that_no_handler_names_is_warned_of() -> None:
    warnings = [line for line in lines(queues=served_queues("mial,default,mail")) if line.startswith("Warning")]
    assert len(warnings) == 1
    assert "No handler names the queue 'mial'" in warnings[0]
    assert "did you mean 'mail'?" in warnings[0]


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        ("mail", "Queues: mail; lease"),
        ("mail,default", "Queues: mail, default, in this order; lease"),
        ("mail,default:3,reports:1", "Queues: mail, default:3, reports:1, in this order and by weight; lease"),
    ],
)
def test_it_says_in_which_order_queues_are_served(queues: str, text: str) -> None:
    assert any(line.startswith(text) for line in lines(queues=served_queues(queues)))
    assert any(line.startswith("Queues: default, mail, reports; lease") for line in lines())


def test_a_site_without_handlers_is_told_where_they_are_found() -> None:
    own = {"delayq.move": make_handler(sync, "delayq.move")}
    shown = "\n".join(banner(Alias("default", store=Store()), ServerReport("a server", "", [], []), own, Options()))
    assert "Warning: This site has no handlers. Handlers are found in the `delayed` module" in shown
    assert "no handlers" not in "\n".join(lines())


def test_it_tells_what_a_crash_loses_and_counts_the_stores_connections() -> None:
    report = ServerReport("a server", "the last second", [], [])
    alias = Alias("default", database="orders", store=Store())
    text = "\n".join(banner(alias, report, {}, Options()))
    assert "and 4 to 'orders' for the store" in text
    assert "Durability: the last second" in text


def test_with_the_database_alone_it_names_no_broker() -> None:
    alias = Alias("default", broker="django_delayq.brokers.database.DatabaseBroker", store=Store())
    shown = banner(alias, ServerReport("the tables", "", [], []), {}, Options())
    assert "Connections at most: 1 to each database, and 4 to 'default' for the store" in shown
