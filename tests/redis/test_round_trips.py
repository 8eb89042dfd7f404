"""How often a put asks the server."""

from django_delayq.brokers.base import Header, Placed, Put
from django_delayq.brokers.redis import puts
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.links import Links
from django_delayq.brokers.redis.scripts import Operation
from django_delayq.brokers.redis.slots import Slots
from tests.brokers.rig import Rig


def counted(operation: Operation[list[Placed | None]], calls_of_each: list[int]) -> Operation[list[Placed | None]]:
    """The operation; notes how many calls each of its round trips makes."""
    try:
        calls = next(operation)
        while True:
            calls_of_each.append(len(calls))
            calls = operation.send((yield calls))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def test_neighbours_whose_ids_wait_in_several_other_sets_are_found_in_one_more(rig: Rig, links: Links) -> None:
    for key in ("one", "two", "three"):
        rig.send(f"in {key}", key=key)
    header = Header("q", "k")
    batch = [Put(id, header, b"1") for id in ("in one", "in two", "new", "in three")]
    round_trips: list[int] = []
    placed = links.run(counted(puts.put(Keys("delayq"), Slots(), batch, "replace"), round_trips))
    assert round_trips == [1, 3]
    assert [answer and answer.created for answer in placed] == [False, False, True, False]
    assert {rig.get(one.id).header.key for one in batch} == {"k"}
