"""Keep the limits of a handler: how many messages may run at once, and how often they may start, over all workers.

Pure values and arithmetic, for the limiters in Python; lua/acquire.lua computes the same in Redis.

Starts keep to a rate by the generic cell rate algorithm (ITU-T I.371). The turn of a limit is when the next start would
come if all of them were an interval apart. A start is allowed up to `burst` - 1 intervals before its turn. It moves the
turn on by an interval from then or from now, whichever is later. So a span of n intervals never has more than
`burst` + n starts.

A worker may take starts ahead, each to be used within `within_us`, and several in one request. Whether such a start is
allowed is decided as if it was used at once, and it moves the turn on as if it was used at the end. So what is said
above also holds for the moments at which messages really start, whichever these are. A start that nobody used is not
given back: others may have waited for their turns after it, so that nobody knows any more what it was worth.

A message that is refused a permit gets a place in a line: the time at which it may ask again. So if many messages wait
for a permit, only a few ask in a second: at first one every `LEAST_STEP_MS`, and one every `MOST_STEP_MS` once no
permit has been free for long. Nobody is notified when a permit becomes free. Therefore the line reaches ahead by only a
quarter of the time for which no permit has been free (but by at least `LEAST_LINE_MS` and at most `MOST_LINE_MS`): when
a permit that was held for long is released, a backlog resumes soon. Messages for which the line has no place left ask
at its end, a millisecond apart, so that a few calls serve them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from django_delayq.core.requests import PermitRequest, Throttled
from django_delayq.core.templates import checked_template, fields_in, filled
from django_delayq.support.validation import check_count, short_repr

MOST_CONCURRENCY = 1_000
"""The largest `max_concurrency`. Each request looks at all permits that are held, so more would make it slow."""
MOST_RATE = MOST_BURST = 1_000_000
LONGEST_BURST_US = 366 * 86_400_000_000
"""The longest time that the starts of a burst may take at the rate alone: Redis counts µs exactly up to 2255."""
MOST_AHEAD, SHARE_AHEAD = 100, 10
"""A worker holds at most so many permits, and at most this part of a handler's, for messages that have not started."""

LEAST_STEP_MS, MOST_STEP_MS = 10, 250
LEAST_LINE_MS, MOST_LINE_MS = 2_000, 60_000
LINGER_MS = 1_000
"""How long after its end a line of refused requests is forgotten, if no request joins it. See the text above."""
LONGEST_WAIT_MS = 300_000
"""The longest time after which a refused request asks again.

So a raised limit, or places that others have left, are noticed soon, and what someone else writes into a line delays a
message by no more.
"""

LEAST_WITHIN_US, MOST_WITHIN_US, LONGEST_WITHIN_US = 100_000, 1_000_000, 2_000_000
"""The time in which a start that was taken ahead must be used. A worker that is busy needs the least one.

The longest one is for starts of a value that is in use: each call takes them for so long.
"""

LONGEST_LOSS_US = 1_000_000
"""The longest interval after which a value has its next start where a worker has not used one that it took ahead."""

_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE = re.compile(r"([0-9]{1,9})/([a-z])", re.ASCII)


class Ahead(NamedTuple):
    """The terms on which starts of a value are taken ahead: each is used within `within_us`, 0 for at once.

    Besides those for the messages that are there, up to `most` are taken for messages to come, if the value is in use.
    Then all are used within `longest_within_us`.
    """

    within_us: int
    longest_within_us: int
    most: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one handler. None means that there is no such limit."""

    max_concurrency: int | None = None
    concurrency_key: str | None = None
    """A text with fields of the data, such as "account:{account_id}".

    Each value that it takes has `max_concurrency` permits of its own. If it is None, all messages share them.
    """
    interval_us: int | None = None
    """The time from one start to the next at the rate."""
    rate_key: str | None = None
    """A text like `concurrency_key`. Each value that it takes has a rate of its own. If it is None, all share one."""
    burst: int = 1
    """How many messages may start at once after a time in which none did."""

    @property
    def most_of_all(self) -> int | None:
        """Return how many messages of the handler may run at once, whatever their data.

        Return None if there is no such limit, or only one for each value of `concurrency_key`.
        """
        return None if self.concurrency_key is not None else self.max_concurrency

    @property
    def most_ahead(self) -> int:
        """Return for how many messages that have not started yet a worker may hold permits.

        A permit is of use to others until its message starts. So there are few if all messages share the permits, and
        `MOST_AHEAD` if most messages have permits of their own. There are none if each start must be a turn.
        """
        if self.interval_us is not None and not self.within_us:
            return 0
        shares = [each // SHARE_AHEAD for each in (self.most_of_all, self.most_starts) if each is not None]
        return min(shares, default=MOST_AHEAD)

    @property
    def most_starts(self) -> int | None:
        """Return how many messages of the handler may start at once, whatever their data; None like `most_of_all`."""
        return None if self.interval_us is None or self.rate_key is not None else self.burst

    @property
    def within_us(self) -> int:
        """Return within how many µs a start must be used, because its turn counts from then; 0 for at once.

        It is a small part of the burst, because that part is lost to who starts at once, but no less than a busy worker
        needs. It is 0 if a busy worker needs more than half of the burst, or if the burst has so few starts that the
        small part is less than one.
        """
        if self.interval_us is None or self.burst < SHARE_AHEAD:
            return 0
        return _within_us(self.burst * self.interval_us)

    @property
    def roomy_within_us(self) -> int:
        """Return within how many µs a start must be used where none was refused lately; 0 for at once.

        Then a burst of few starts may lose one to who starts at once, unless all messages share one rate: the next of
        them would be refused. If a worker can't use a start in time, because its slots are busy or it stops, that is
        lost, and the message waits for an interval. So there is none ahead of few starts if these are far apart.
        """
        if self.interval_us is None or self.rate_key is None:
            return 0
        if self.burst < SHARE_AHEAD and self.interval_us > LONGEST_LOSS_US:
            return 0
        return _within_us(self.burst * self.interval_us)

    @property
    def longest_within_us(self) -> int:
        """Return within how many µs starts must be used that are taken for messages to come; 0 if none may be taken.

        It may be half of the burst, because a value that is in use has less than its burst left anyway. With less,
        such starts would be too late for most messages of a short burst.
        """
        if self.interval_us is None or not self.within_us:
            return 0
        return min(self.burst * self.interval_us // 2, LONGEST_WITHIN_US)

    def ahead(self, *, is_roomy: bool) -> Ahead:
        """Return how starts may be taken ahead; `is_roomy` if none was refused lately."""
        most = self.burst // SHARE_AHEAD if self.longest_within_us > LEAST_WITHIN_US else 0
        return Ahead(self.roomy_within_us if is_roomy else self.within_us, self.longest_within_us, most)

    @property
    def has_keys(self) -> bool:
        """Return whether the limits depend on a message's data."""
        return self.concurrency_key is not None or self.rate_key is not None

    def values_of(self, data: Any) -> tuple[str, str]:
        """Return the values of `concurrency_key` and `rate_key` for `data`, a message's data as plain JSON values.

        A value is '' if there is no such key. Raises `DataMismatch` if a field is missing, is neither text nor a whole
        number, or makes the result too long.
        """
        value = filled("concurrency_key", self.concurrency_key, data)
        if self.rate_key == self.concurrency_key:
            return value, value
        return value, filled("rate_key", self.rate_key, data)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Return each field in `concurrency_key` and `rate_key`, with the option; '' stands for the data itself."""
        keys = {"concurrency_key": self.concurrency_key, "rate_key": self.rate_key}
        return [(option, name) for option, template in keys.items() for name in fields_in(template or "")]


def _within_us(burst_us: int) -> int:
    """Return the time in which a start of such a burst must be used; 0 if that takes more than half of the burst."""
    if burst_us // 2 < LEAST_WITHIN_US:
        return 0
    return min(max(burst_us // SHARE_AHEAD, LEAST_WITHIN_US), MOST_WITHIN_US)


def check_limits(
    max_concurrency: int | None,
    concurrency_key: str | None,
    rate_limit: str | None,
    rate_key: str | None = None,
    burst: int = 1,
) -> Limits | None:
    """Check the arguments of `delay_execute` that limit a handler, and return them as `Limits`; None if none limits it.

    Raises `ValueError` or `TypeError`, naming the value and the fix.
    """
    check_count(burst, "burst", most=MOST_BURST)
    if rate_limit is None:
        if rate_key is not None:
            raise ValueError(f"rate_key={short_repr(rate_key)} limits nothing alone; add rate_limit='100/m'.")
        if burst != 1:
            raise ValueError(f"burst={burst} is that of a rate; add rate_limit='100/m'.")
        if max_concurrency is None and concurrency_key is None:
            return None
    if max_concurrency is not None:
        check_count(max_concurrency, "max_concurrency", most=MOST_CONCURRENCY)
    elif concurrency_key is not None:
        raise ValueError(f"concurrency_key={short_repr(concurrency_key)} limits nothing alone; add max_concurrency=1.")
    interval_us = None if rate_limit is None else interval_us_of(rate_limit)
    if burst * (interval_us or 0) > LONGEST_BURST_US:
        raise ValueError(f"burst={burst} takes over a year at rate_limit={short_repr(rate_limit)}; give less.")
    return Limits(
        max_concurrency,
        None if concurrency_key is None else checked_template("concurrency_key", concurrency_key),
        interval_us,
        None if rate_key is None else checked_template("rate_key", rate_key),
        burst,
    )


def interval_us_of(rate: str, name: str = "rate_limit") -> int:
    """Return the time between two starts in µs, rounded up so that messages never start more often than `rate`.

    Raises `TypeError` or `ValueError`, naming the argument (`name`), the value and the fix.
    """
    if not isinstance(rate, str):
        raise TypeError(f"{name}={short_repr(rate)} is {type(rate).__name__}; write it like '100/m'.")
    found = _RATE.fullmatch(rate)
    if found is None or found[2] not in _UNIT_US:
        raise ValueError(f"{name}={short_repr(rate)} is no rate; write it like '10/s', '100/m', '1000/h' or '5000/d'.")
    count = check_count(int(found[1]), f"the number of {name}", most=MOST_RATE)
    return -(-_UNIT_US[found[2]] // count)


# The arithmetic


@dataclass(slots=True)
class Permits:
    """The permits of one (key, value): the tokens that hold them, and the line of requests that wait.

    All times are epoch ms.
    """

    ends: dict[int, int] = field(default_factory=dict)
    """When each token's permit ends."""
    line_ms: int = 0
    """When the line ends: the time at which the request that was refused last may ask again."""
    since_ms: int = 0
    """When the first request was refused after the last grant; 0 if none was."""
    looked_ms: int = 0
    """When somebody looked at these last."""

    def look(self, now_ms: int, lease_ms: int) -> None:
        """Bring these up to the present: forget the permits that have run out.

        A holder that can renew its permit does so each third of a lease, so it always has more than half a lease left.
        If such a permit has less left at the next look, that look comes late: the clock jumped ahead, or nobody could
        look, and so nobody could renew. Then it gets half a lease, in which its holder can. It does so once: after that
        it has no more than half a lease left. If the clock went back since the last look, so does everything here.
        """
        if now_ms < self.looked_ms:
            self._move(now_ms - self.looked_ms)
        half_ms = lease_ms // 2
        renewed_after_ms, least_ms = self.looked_ms + half_ms, now_ms + half_ms
        ends = {token: max(end, least_ms) if end > renewed_after_ms else end for token, end in self.ends.items()}
        self.ends = {token: end for token, end in ends.items() if end > now_ms}
        self.looked_ms = now_ms

    def _move(self, ms: int) -> None:
        self.ends = {token: end + ms for token, end in self.ends.items()}
        self.line_ms += ms
        if self.since_ms:
            self.since_ms += ms
        self.looked_ms += ms

    def take(self, token: int, end_ms: int) -> None:
        """Hold a permit for this token until `end_ms`."""
        self.ends[token] = end_ms
        self.since_ms = 0

    def release(self, tokens: Iterable[int]) -> None:
        """Release the permits of these tokens."""
        for token in tokens:
            self.ends.pop(token, None)

    def is_over(self, now_ms: int) -> bool:
        """Return whether no token holds a permit and no request waits, so that these permits can be forgotten."""
        return self.line_ms + LINGER_MS <= now_ms and all(end <= now_ms for end in self.ends.values())

    def wait_in_line(self, now_ms: int) -> int:
        """Put one more request in the line, and return after how many ms it may ask again."""
        if not self.since_ms or self.line_ms + LINGER_MS <= now_ms:
            self.since_ms = now_ms
        none_free_ms = now_ms - self.since_ms
        step = min(max(none_free_ms // 10, LEAST_STEP_MS), MOST_STEP_MS)
        end_ms = now_ms + min(max(none_free_ms // 4, LEAST_LINE_MS), MOST_LINE_MS)
        last_ms = max(self.line_ms, now_ms)
        self.line_ms = min(last_ms + (step if last_ms + step <= end_ms else 1), now_ms + LONGEST_WAIT_MS)
        return self.line_ms - now_ms


class Limit(NamedTuple):
    """The limit that a request names. Requests with equal limits can be answered by one call."""

    key: str
    value: str
    most: int | None
    interval_us: int | None
    rate_value: str = ""
    burst: int = 1
    within_us: int = 0

    @property
    def tolerance_us(self) -> int:
        """Return how long before its turn a start is allowed."""
        return (self.burst - 1) * (self.interval_us or 0)

    @property
    def values(self) -> set[str]:
        """Return the values of the key that this limit is about: that of the permits, and that of the turn."""
        if self.interval_us is None:
            return {self.value}
        return {self.rate_value} if self.most is None else {self.value, self.rate_value}


def by_limit(requests: Sequence[PermitRequest]) -> dict[Limit, list[int]]:
    """Group the requests by their limit, and return the positions of each group."""
    positions: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, request in enumerate(requests):
        positions[_limit_of(request)].append(i)
    return {Limit._make(fields): own for fields, own in positions.items()}


_limit_of = attrgetter(*Limit._fields)
"""Return the values of the fields of `Limit` that a request names."""


def acquire(
    limit: Limit, permits: Permits, turn_us: int, requests: Sequence[PermitRequest], lease_ms: int, now_us: int
) -> tuple[list[Throttled | None], int]:
    """Grant or refuse a permit and starts to each request of a limit, and change `permits` accordingly.

    `turn_us` is the turn of the limit, in epoch µs. Return an answer for each request (None grants all of it), and
    the new `turn_us`.
    """
    now_ms, interval_us = now_us // 1000, limit.interval_us
    waits_us = 0
    if interval_us is not None:  # a request without a rate leaves the turn of its key alone
        # A start that was taken ahead moved the turn on by so much more, also if this one is not.
        ahead_us = max(limit.within_us, min(interval_us // 2, MOST_WITHIN_US))
        latest_us = now_us + max(limit.tolerance_us, ahead_us) + interval_us
        turn_us = min(turn_us, latest_us)  # the clock may have gone back
        waits_us = max(turn_us - limit.tolerance_us - now_us, 0)
    if limit.most is not None:
        permits.look(now_ms, lease_ms)
    answers: list[Throttled | None] = []
    for request in requests:
        holds = limit.most is not None and request.token in permits.ends
        is_free = limit.most is None or len(permits.ends) < limit.most
        granted = 0
        if holds or (is_free and not waits_us):
            granted = request.starts
            if not holds and interval_us is not None:
                first_us = max(turn_us, now_us + limit.within_us)
                more = (now_us + limit.tolerance_us - first_us) // interval_us
                granted = min(granted, max(more, 0) + 1)
                turn_us = first_us + granted * interval_us
                waits_us = max(turn_us - limit.tolerance_us - now_us, 0)
            if limit.most is not None:
                permits.take(request.token, now_ms + lease_ms)
        if granted == request.starts:
            answers.append(None)
        else:
            until_turn_ms = min(-(-waits_us // 1000), LONGEST_WAIT_MS)
            wait_ms = max(until_turn_ms, 0 if is_free else permits.wait_in_line(now_ms))
            of_key = not (limit.rate_value if until_turn_ms else limit.value)
            answers.append(Throttled(wait_ms, of_key, of_rate=until_turn_ms > 0, starts=granted))
    return answers, turn_us


def spread(requests: Sequence[PermitRequest], answers: Sequence[Throttled | None]) -> list[Throttled | None]:
    """Let the refused requests that wait for the turns of one rate ask again one turn after the other.

    `acquire` tells each of them the next turn. They may have several values of `concurrency_key`. The order is that of
    the requests. None waits for longer than `LONGEST_WAIT_MS`.
    """
    if not any(answers):
        return list(answers)
    refused: Counter[tuple[str, str]] = Counter()
    result: list[Throttled | None] = []
    for request, answer in zip(requests, answers, strict=True):
        if answer is not None and answer.of_rate:
            rate = request.key, request.rate_value
            answer = turns_later(answer, refused[rate], request)
            refused[rate] += request.starts - answer.starts
        result.append(answer)
    return result


def turns_later(refusal: Throttled, turns: int, request: PermitRequest) -> Throttled:
    """Return the refusal of a start that comes so many turns after the one that `refusal` tells."""
    if not refusal.of_rate or request.interval_us is None:
        return refusal
    later_ms = -(-turns * request.interval_us // 1000)
    return refusal._replace(wait_ms=min(refusal.wait_ms + later_ms, LONGEST_WAIT_MS))
