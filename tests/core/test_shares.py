"""The shares of a handler as they are written, and the choice of turns."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given, strategies as st

from django_delayq import Message, delay_execute
from django_delayq.core.errors import DataMismatch
from django_delayq.core.shares import (
    AHEAD_CLAIMS,
    AHEAD_TURNS,
    MOST_IN_CLAIM,
    QUANTUM,
    Shares,
    Turns,
    check_shares,
    in_turn,
)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share_key": "shop"}, "share_key='shop' names no field of the data; write it like"),
        ({"share_key": 7}, "share_key=7 is int"),
        ({"share_weight": {"shop:1": 2}}, "share_weight weighs nothing alone; add share_key"),
        ({"share_key": "s:{a}", "share_weight": {"s:1": 0}}, "the weight of 's:1' in share_weight=0 is too small"),
        ({"share_key": "s:{a}", "share_weight": {"s:1": 101}}, "give 100 or less"),
        (
            {"share_key": "s:{a}", "share_weight": lambda: 1},
            "takes (); it must take one positional argument: (share)",
        ),
        ({"share_key": "s:{a}", "share_weight": 3}, "share_weight=3 is int; give a dict of share and weight"),
    ],
)
def test_wrong_shares_are_refused_with_the_value_and_the_fix(options: Mapping[str, object], said: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:

        @delay_execute(key="k", **options)  # type: ignore[arg-type]
        def handle(message: Message[None]) -> None: ...

    assert said in str(refused.value)


def test_a_share_is_found_in_the_data() -> None:
    shares = check_shares("shop:{shop_id}", {"shop:7": 3})
    assert shares is not None
    assert shares.share_of({"shop_id": 7}) == "shop:7"
    assert (shares.weight_of("shop:7"), shares.weight_of("shop:8")) == (3, 1)
    for data in {}, {"shop_id": None}, {"shop_id": "x" * 146}:
        with pytest.raises(DataMismatch, match="share_key="):
            shares.share_of(data)


def test_a_weight_may_be_worked_out_and_must_be_one() -> None:
    assert Shares("s:{}", lambda share: len(share)).weight_of("s:1") == 3
    with pytest.raises(ValueError, match="the weight of a share=0 is too small"):
        Shares("s:{}", lambda share: 0).weight_of("s:1")


# Turns


class Queue:
    """How many are due of each share, and how many were claimed of it."""

    def __init__(self, due: Mapping[str, int], weights: Mapping[str, int]) -> None:
        self.due = dict(due)
        self.claimed: Counter[str] = Counter()
        self.turns = Turns(lambda share: weights.get(share, 1))
        for share in due:
            self.turns.add(share, 0)

    def claim(self, count: int) -> dict[str, int]:
        planned = self.turns.plan(count)
        assert sum(planned.values()) <= count
        assert len(planned) <= MOST_IN_CLAIM
        given = {share: min(most, self.due[share] - self.claimed[share]) for share, most in planned.items()}
        self.claimed.update(given)
        self.turns.note(planned, given)
        return given


SHARES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(0, 300), max_size=80)
WEIGHTS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 20))
COUNTS = st.integers(1, 500)


@given(SHARES, WEIGHTS, COUNTS)
def test_everything_is_claimed(due: dict[str, int], weights: dict[str, int], count: int) -> None:
    queue = Queue(due, weights)
    while queue.turns:
        queue.claim(count)
    assert queue.claimed == Counter(due)


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 20), min_size=2), COUNTS)
def test_while_all_have_more_each_gets_its_part_by_weight_give_or_take_a_turn(
    weights: dict[str, int], count: int
) -> None:
    queue = Queue(dict.fromkeys(weights, 1_000_000), weights)
    while len(queue.claimed) < len(weights):  # until each has had the turn that a new share has first
        queue.claim(count)
    first = queue.claimed.copy()
    for _ in range(100):
        queue.claim(count)
    turns = [(queue.claimed[share] - first[share]) / (weights[share] * QUANTUM) for share in weights]
    assert max(turns) - min(turns) <= 2


@given(st.integers(2, 100), st.integers(1, 200), st.integers(0, 50))
def test_shares_that_keep_coming_starve_no_other(old: int, count: int, new: int) -> None:
    queue = Queue({f"old:{n}": 1_000_000 for n in range(old)}, {})
    while len(queue.claimed) < old:
        queue.claim(count)
    first = queue.claimed.copy()
    for turn in range(4 * old * QUANTUM // count + 2 * old):
        for n in range(new):
            queue.due[f"new:{turn}:{n}"] = 1
            queue.turns.add(f"new:{turn}:{n}", 0, 1)
        queue.claim(count)
    assert all(queue.claimed[share] > first[share] for share in first)


def test_a_share_of_which_nothing_was_due_before_comes_next() -> None:
    queue = Queue({"hog": 1_000_000, "other": 1_000_000}, {})
    queue.claim(100)
    queue.due["late"] = 3
    queue.turns.add("late", 0, 3)
    assert next(iter(queue.claim(100).items())) == ("late", 3)
    assert "late" not in queue.turns, "no more of it was seen, so that no claim asks for it in vain"


@pytest.mark.parametrize(
    ("counts", "end_ms", "are_mixed"),
    [
        ({"a": 50, "b": 30, "c": 20}, 5, True),
        ({"a": 50, "b": 45, "c": 5}, 5, False),
        ({"a": 50, "b": 45, "c": 5}, 7, True),  # c has no more
        ({"a": 50, "b": 50}, 5, False),
        ({"a": 50, "b": 50}, 7, True),
        ({"a": 50, "b": 50}, None, True),
        ({"a": 30, "b": 2}, None, True),  # a has no more than three turns
        ({"a": 12, "d": 60, "b": 14, "c": 14}, 5, True),  # d may have most, by its weight
        ({"a": 5, "d": 60, "b": 14, "c": 14}, 5, False),
        ({"a": 5, "b": 5, "c": 5, None: 40}, 5, False),  # rows without a share are no one's part
    ],
)
def test_messages_are_mixed_if_no_share_has_far_from_its_part(
    counts: dict[str | None, int], end_ms: int | None, are_mixed: bool
) -> None:
    turns = Turns(lambda share: 3 if share == "d" else 1)
    for share, last_ms in {"a": 9, "b": 9, "c": 6, **({"d": 9} if "d" in counts else {})}.items():
        turns.add(share, last_ms)
    assert turns.note_ahead(counts, end_ms) is are_mixed


def test_a_share_is_new_again_once_claims_in_due_order_have_passed_its_last() -> None:
    turns = Turns(lambda share: 1)
    turns.add("a", 100)
    turns.add("b", 50)
    assert turns.note_ahead({"a": 30, "b": 30}, 90)
    turns.passed_ms = 60
    assert turns.plan_new(10) == {}
    assert not turns.add("a", 110, 2)
    assert turns.add("b", 110, 2)
    assert turns.note_ahead({"a": 30, "b": 2, "c": 4}, None)
    assert turns.plan_new(10) == {"b": 2}, "it is counted with the others, and comes first all the same"
    assert "c" in turns, "it was not known"


class Backlog:
    """Messages in due order, of which claims take those that a store's claims would take."""

    def __init__(self, shares: Sequence[str], weights: Mapping[str, int]) -> None:
        self.waiting = dict(enumerate(shares))
        self.turns = Turns(lambda share: weights.get(share, 1))
        self.mixed = 0
        for due_ms, share in self.waiting.items():
            self.turns.add(share, due_ms)

    def claim(self, count: int) -> list[str]:
        if self.mixed <= 0:
            ahead = list(islice(self.waiting.items(), self.turns.ahead(count)))
            end_ms = ahead[-1][0] if len(ahead) < len(self.waiting) else None
            if self.turns.note_ahead(Counter(share for _, share in ahead), end_ms):
                self.mixed = len(ahead)
        if self.mixed > 0:
            taken = list(islice(self.waiting, count))
            self.turns.passed_ms = taken[-1] if taken else 0
            self.mixed -= count
        else:
            planned = self.turns.plan(count)
            taken = [n for share, most in planned.items() for n in islice(self._of(share), most)]
            self.turns.note(planned, Counter(self.waiting[n] for n in taken))
        return [self.waiting.pop(n) for n in taken]

    def _of(self, share: str) -> Iterator[int]:
        return (n for n, of in self.waiting.items() if of == share)


@given(
    st.lists(st.tuples(st.text("ab", min_size=1, max_size=6), st.integers(1, 300)), min_size=1, max_size=12),
    st.text("ab", max_size=30),
    st.integers(1, 100),
    WEIGHTS,
)
def test_ten_messages_of_a_share_wait_for_a_few_turns_of_the_others_at_most(
    runs: list[tuple[str, int]], last: str, count: int, weights: dict[str, int]
) -> None:
    """The others may be due in any order, however many they are."""
    backlog = Backlog([*"".join(text * number for text, number in runs), *last, *"z" * QUANTUM], weights)
    a_round = QUANTUM * (1 + weights.get("a", 1) + weights.get("b", 1))
    most = max(AHEAD_TURNS * a_round, AHEAD_CLAIMS * count) + 2 * a_round + 2 * count
    claimed = list[str]()
    while len(claimed) < most and backlog.waiting:
        claimed += backlog.claim(count)
    assert claimed.count("z") == QUANTUM


@given(st.lists(st.sampled_from("abc")), st.permutations("abc"))
def test_in_turn_shares_alternate_in_their_order(shares: list[str], order: list[str]) -> None:
    items = list(enumerate(shares))
    result = in_turn(items, lambda item: item[1], order)
    assert sorted(result) == items
    left = Counter(shares)
    for share in order:
        own = [place for place, of in result if of == share]
        assert own == sorted(own)
    for (_, first), (_, second) in pairwise(result):
        left[first] -= 1
        assert first != second or all(not number for share, number in left.items() if share != first)
