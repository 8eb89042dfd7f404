"""What comes of the calls of one round trip to several nodes."""

import pytest
from redis.exceptions import ResponseError

from django_delayq.brokers.redis.client import Call, TransientError, plain
from django_delayq.brokers.redis.client.cluster import ClusterPipeline
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable

CALLS = [plain("ZCARD", "{a}"), plain("ZCARD", "{b}"), Call(None, (), ("WAIT", 1, 1))]


def test_only_what_may_have_been_done_before_is_repeated() -> None:
    trip = ClusterPipeline(CALLS)
    trip.lose([0], TransientError("no answer"))
    trip.fail([1], TransientError("moved"))
    for i in range(3):
        trip.answer(i, 0)
    replies = trip.replies()
    assert [replies.part(i, 1).repeated for i in range(3)] == [True, False, False]
    assert (trip.left, replies.is_partial) == (set(), False)


def test_of_the_answers_of_all_nodes_to_one_call_the_least_counts() -> None:
    trip = ClusterPipeline(CALLS)
    for i, reply in ((0, 7), (2, 1), (1, 7), (2, 0), (2, 1)):
        trip.answer(i, reply)
    assert trip.replies() == [7, 7, 0]


def test_an_error_of_one_node_counts_before_what_the_others_answered() -> None:
    for order in ([1, ResponseError("NOPERM")], [ResponseError("NOPERM"), 1]):
        trip = ClusterPipeline(CALLS)
        for i, reply in ((0, 7), (1, 7), (2, order[0]), (2, order[1])):
            trip.answer(i, reply)
        assert str(trip.replies()[2]) == "NOPERM"


def test_what_is_left_has_its_last_error() -> None:
    trip = ClusterPipeline(CALLS)
    trip.answer(0, 7)
    trip.fail([1], TransientError("first"))
    trip.fail([1, 2], TransientError("last"))
    replies = trip.replies()
    assert [str(reply) for reply in replies] == ["7", "last", "last"]
    assert [replies.part(i, 1).is_partial for i in range(3)] == [False, True, True]


def test_an_error_that_repeating_can_not_help_is_raised_where_nothing_was_done() -> None:
    trip = ClusterPipeline(CALLS[:1])
    trip.refuse(0, BrokerUnavailable("no memory left"))
    with pytest.raises(BrokerUnavailable, match="no memory left"):
        trip.replies()
    with pytest.raises(BrokerRefused):
        trip.refuse(0, BrokerRefused("NOPERM"))
