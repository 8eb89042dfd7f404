"""Connections that died while they were idle."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from django_delayq.brokers.base import BATCH, Header, NewMessage
from tests.brokers.rig import Rig
from tests.servers import Server

MANY = 40


def put_of(id: str) -> list[NewMessage]:
    return [NewMessage(id, Header("q", "k"), b"1")]


def kill_connections(server: Server) -> None:
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)


def test_a_send_passes_when_every_idle_connection_died(rig: Rig, redis_server: Server) -> None:
    waits = [rig.broker.queue.begin_enqueue(put_of(f"{n}")) for n in range(MANY)]  # as many connections at once
    for wait in waits:
        wait()
    kill_connections(redis_server)
    assert rig.broker.queue.enqueue(put_of("after"))[0].created
    with redis_server.client() as client:
        assert len(client.client_list(_type="normal")) <= 3  # the dead ones are gone, not tried one by one


def test_an_async_send_passes_when_every_idle_connection_died(rig: Rig, redis_server: Server) -> None:
    async def send_all() -> bool:
        await asyncio.gather(*(rig.broker.queue.aenqueue(put_of(f"{n}")) for n in range(MANY)))
        await asyncio.to_thread(kill_connections, redis_server)
        (placed,) = await rig.broker.queue.aenqueue(put_of("after"))
        return placed.created

    assert asyncio.run(send_all())


def test_threads_under_load_go_on_after_their_connections_were_killed(rig: Rig, redis_server: Server) -> None:
    names = [f"{n}" for n in range(400)]
    with ThreadPoolExecutor(8) as pool:
        sends = [pool.submit(rig.broker.queue.enqueue, put_of(name)) for name in names]
        for _ in range(5):
            kill_connections(redis_server)
        assert [send.result()[0].created for send in sends] == [True] * len(names)
    assert rig.total("sent") == len(names)


def test_a_whole_batch_leaves_over_a_unix_socket_while_the_server_is_at_other_work(
    own_rig: Rig, own_server: Server
) -> None:
    own_rig.broker.queue.enqueue(put_of("first"))  # there is an idle connection
    batch = [NewMessage(f"{n:022}", Header("q", "k"), b'"' + b"x" * 98 + b'"') for n in range(BATCH)]
    with own_server.client() as client:
        before = client.info("stats")["total_connections_received"]
        own_server.freeze()
        wait = own_rig.broker.queue.begin_enqueue(batch)
        own_server.thaw()
        assert len(wait()) == BATCH
        assert client.info("stats")["total_connections_received"] == before, "it was not sent again"
