"""RabbitMQ without a store: sending and draining against raw loops of the same client, and how late handlers start."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from time import perf_counter

import amqp

from benchmarks.delayed import noop, record
from benchmarks.lateness import measure
from benchmarks.rates import in_turn
from benchmarks.records import read_records
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, DATA_BYTES, fill, sending_to
from benchmarks.worker import RECORDS, worker
from django_delayq import send_delay_messages
from tests.servers import RabbitMQServer, rabbitmq_programs

FLOOR = "delayq.floor"
BATCH = 1_000
PREFETCH = 256  # what our worker asks for: 4 threads, 64 messages for each
PER_S = 100
MONTH_S = 30 * 86_400
ARGUMENTS = {"x-queue-type": "quorum"}


def run() -> list[Result]:
    """Three lines of ratios and lateness, and how many were early."""
    with _node() as server, sending_to(server), closing(server.client()) as client, client.channel() as channel:
        channel.exchange_declare(FLOOR, "direct", durable=True, auto_delete=False)
        channel.queue_declare(FLOOR, durable=True, auto_delete=False, arguments=ARGUMENTS)
        channel.queue_bind(FLOOR, FLOOR, FLOOR)
        return [_send(channel), _drain(server, channel), *_lateness(server)]


@contextmanager
def _node() -> Iterator[RabbitMQServer]:
    programs = rabbitmq_programs()
    if programs is None:
        raise SystemExit("The benchmark of RabbitMQ needs its server: apt-get install rabbitmq-server.")
    with closing(RabbitMQServer(programs, wal_sync="datasync")) as server:
        yield server


def _send(channel: amqp.Channel) -> Result:
    size = scaled(10_000, least=BATCH)

    def ours() -> float:
        started = perf_counter()
        fill(size, delay=3600)
        return perf_counter() - started

    def floor() -> float:
        channel.queue_purge(FLOOR)
        return _publish_s(channel, size)

    ours()
    floor()
    rates = in_turn(ours, floor, size)
    return at_least(f"RabbitMQ: send_delay_messages / raw publish, confirms of {BATCH}", rates.ratio, 0.6, str(rates))


def _publish_s(channel: amqp.Channel, size: int) -> float:
    """Publish as raw as can be, and wait for the confirms of each batch."""
    with channel.connection.channel() as publishing:
        publishing.confirm_select()
        confirmed = 0

        def on_ack(tag: int, multiple: bool) -> None:
            nonlocal confirmed
            confirmed = max(confirmed, tag) if multiple else confirmed + 1

        publishing.events["basic_ack"].add(on_ack)
        started = perf_counter()
        for first in range(0, size, BATCH):
            for _ in range(first, min(first + BATCH, size)):
                publishing.basic_publish(amqp.Message(DATA_BYTES, delivery_mode=2), FLOOR, FLOOR, mandatory=True)
            while confirmed < min(first + BATCH, size):
                channel.connection.drain_events(timeout=10)
        return perf_counter() - started


def _drain(server: RabbitMQServer, channel: amqp.Channel) -> Result:
    size = scaled(20_000, least=1_000)

    def ours() -> float:
        records = server.directory / RECORDS
        records.unlink(missing_ok=True)
        send_delay_messages(record.prepare(None) for _ in range(size))
        with worker(server, "--drain") as running:
            running.wait()
        runs = read_records(server)
        records.unlink()
        return (max(run.ran_ms for run in runs) - min(run.ran_ms for run in runs)) / 1000

    def floor() -> float:
        channel.queue_purge(FLOOR)
        _publish_s(channel, size)
        return _consume_s(channel, size)

    rates = in_turn(ours, floor, size)
    what = f"RabbitMQ: draining {size:,} / raw consume and acknowledge, prefetch {PREFETCH}"
    return at_least(what, rates.ratio, 0.5, str(rates))


def _consume_s(channel: amqp.Channel, size: int) -> float:
    with channel.connection.channel() as consuming:
        got = 0

        def on_message(message: amqp.Message) -> None:
            nonlocal got
            got += 1
            consuming.basic_ack(message.delivery_tag)

        consuming.basic_qos(0, PREFETCH, False)
        started = perf_counter()
        consuming.basic_consume(FLOOR, callback=on_message)
        while got < size:
            channel.connection.drain_events(timeout=10)
        return perf_counter() - started


def _lateness(server: RabbitMQServer) -> list[Result]:
    delays = random.Random(1)
    size = scaled(100_000, least=1_000)
    send_delay_messages(noop.prepare(DATA, delay=delays.uniform(1, MONTH_S)) for _ in range(size))
    with worker(server) as running:
        results = measure(server, running, PER_S, 50)
    return [replace(result, what=f"RabbitMQ, {size:,} waiting: {result.what}") for result in results]
