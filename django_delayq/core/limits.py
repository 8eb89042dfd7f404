"""Keep the limits of a handler: how many messages may run at once, and how often they may start, over all workers.

Pure values and arithmetic, for the limiters in Python; lua/acquire.lua computes the same in Redis.

Starts are spaced by the generic cell rate algorithm (ITU-T I.371) without a tolerance: the next start is allowed one
interval after the last one, even if no message used the intervals before. So n intervals never have more than n + 1
starts.

A message that is refused a permit gets a place in a line: the time at which it may ask again. So if many messages wait
for a permit, only a few ask in a second: at first one every `LEAST_STEP_MS`, and one every `MOST_STEP_MS` once no
permit has been free for long. Nobody is notified when a permit becomes free. Therefore the line reaches ahead by only a
quarter of the time for which no permit has been free (but by at least `LEAST_LINE_MS` and at most `MOST_LINE_MS`): when
a permit that was held for long is released, a backlog resumes soon. Messages for which the line has no place left ask
at its end, a millisecond apart, so that a few calls serve them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_delayq.core.errors import DataMismatch
from django_delayq.core.requests import PermitRequest, Throttled
from django_delayq.support.validation import MAX_NAME, check_count, short_repr

MOST_CONCURRENCY = 1_000
"""The largest `max_concurrency`. Each request looks at all permits that are held, so more would make it slow."""
MOST_RATE = 1_000_000
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

_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE = re.compile(r"([0-9]{1,9})/([a-z])", re.ASCII)
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one handler. None means that there is no such limit."""

    max_concurrency: int | None = None
    concurrency_key: str | None = None
    """A text with fields of the data, such as "account:{account_id}".

    Each value that it takes has `max_concurrency` permits of its own. If it is None, all messages share them.
    """
    interval_us: int | None = None
    """The least time from one start to the next."""

    @property
    def most_of_all(self) -> int | None:
        """Return how many messages of the handler may run at once, whatever their data.

        Return None if there is no such limit, or only one for each value of `concurrency_key`.
        """
        return None if self.concurrency_key is not None else self.max_concurrency

    @property
    def most_ahead(self) -> int:
        """Return for how many messages that have not started yet a worker may hold permits.

        A permit is of use to others until its message starts. So there are none if a start must be a turn, few if all
        messages share the permits, and `MOST_AHEAD` if most messages have permits of their own.
        """
        if self.interval_us is not None:
            return 0
        return MOST_AHEAD if self.most_of_all is None else self.most_of_all // SHARE_AHEAD

    def value_of(self, data: Any) -> str:
        """Return `concurrency_key` with its fields filled in from `data`, a message's data as plain JSON values.

        Return '' if there is no `concurrency_key`. If there are several fields, their lengths follow, because "1" and
        "2:3" would otherwise give the same text as "1:2" and "3". Raises `DataMismatch` if a field is missing, is
        neither text nor a whole number, or makes the result too long.
        """
        if self.concurrency_key is None:
            return ""
        texts = [_text_of(field, data, self.concurrency_key) for field in self.fields]
        rest = iter(texts)
        value = _FIELD.sub(lambda _: next(rest), self.concurrency_key)
        if len(texts) > 1:
            value += f" {','.join(str(len(text)) for text in texts)}"
        if len(value) > MAX_NAME:
            raise DataMismatch(
                f"concurrency_key={short_repr(self.concurrency_key)} makes {len(value)} characters of this data; "
                f"at most {MAX_NAME} will do."
            )
        return value

    @property
    def fields(self) -> list[str]:
        """Return the names of the fields in `concurrency_key`; '' stands for the data itself."""
        return _FIELD.findall(self.concurrency_key or "")


def check_limits(max_concurrency: int | None, concurrency_key: str | None, rate_limit: str | None) -> Limits | None:
    """Check the arguments of `delay_execute` that limit a handler, and return them as `Limits`; None if all are None.

    Raises `ValueError` or `TypeError`, naming the value and the fix.
    """
    if max_concurrency is None and concurrency_key is None and rate_limit is None:
        return None
    if max_concurrency is not None:
        check_count(max_concurrency, "max_concurrency", most=MOST_CONCURRENCY)
    elif concurrency_key is not None:
        raise ValueError(f"concurrency_key={short_repr(concurrency_key)} limits nothing alone; add max_concurrency=1.")
    return Limits(
        max_concurrency,
        None if concurrency_key is None else _checked_template(concurrency_key),
        None if rate_limit is None else interval_us_of(rate_limit),
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


def _checked_template(template: str) -> str:
    if not isinstance(template, str):
        raise TypeError(f"concurrency_key={short_repr(template)} is {type(template).__name__}; give one str.")
    fields = _FIELD.findall(template)
    if not fields or "{" in (rest := _FIELD.sub("", template)) or "}" in rest:
        raise ValueError(
            f"concurrency_key={short_repr(template)} names no field of the data; write it like "
            "'account:{account_id}', or 'account:{}' for the data itself."
        )
    for name in fields:
        if name and not name.isidentifier():
            raise ValueError(
                f"concurrency_key={short_repr(template)}: {{{name}}} is no name of a field; give one name."
            )
    return template


def _text_of(field: str, data: Any, template: str | None) -> str:
    value = data
    if field:
        if not isinstance(data, Mapping) or field not in data:
            raise DataMismatch(f"concurrency_key={short_repr(template)} names {field!r}, which this data doesn't have.")
        value = data[field]
    if value is None or isinstance(value, Mapping | list | float):
        what = f"the field {field!r}" if field else "the data itself"
        raise DataMismatch(
            f"concurrency_key={short_repr(template)}: {what} is of type {type(value).__name__}; "
            "give text or a whole number."
        )
    text = str(value)
    return text if text.isprintable() and not text.startswith(("'", '"')) else repr(text)


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


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit that a request names. Requests with equal limits can be answered by one call."""

    key: str
    value: str
    most: int | None
    interval_us: int | None


def by_limit(requests: Sequence[PermitRequest]) -> dict[Limit, list[int]]:
    """Group the requests by their limit, and return the positions of each group."""
    positions: defaultdict[Limit, list[int]] = defaultdict(list)
    for i, request in enumerate(requests):
        positions[Limit(request.key, request.value, request.most, request.interval_us)].append(i)
    return positions


def acquire(
    limit: Limit, permits: Permits, turn_us: int, tokens: Sequence[int], lease_ms: int, now_us: int
) -> tuple[list[Throttled | None], int]:
    """Grant or refuse a permit to each token, and change `permits` accordingly.

    `turn_us` is when the key's next start is allowed, in epoch µs. Return an answer for each token (None grants), and
    the new `turn_us`.
    """
    now_ms, interval_us = now_us // 1000, limit.interval_us
    waits_us = 0
    if interval_us is not None:  # a request without a rate leaves the turn of its key alone
        turn_us = min(turn_us, now_us + interval_us)  # the clock may have gone back
        waits_us = max(turn_us - now_us, 0)
    permits.look(now_ms, lease_ms)
    answers: list[Throttled | None] = []
    for token in tokens:
        holds = token in permits.ends
        is_free = limit.most is None or len(permits.ends) < limit.most
        if holds or (is_free and not waits_us):
            if not holds and interval_us is not None:
                waits_us = interval_us
                turn_us = now_us + interval_us
            if limit.most is not None:
                permits.take(token, now_ms + lease_ms)
            answers.append(None)
        else:
            until_turn_ms = min(-(-waits_us // 1000), LONGEST_WAIT_MS)
            wait_ms = max(until_turn_ms, 0 if is_free else permits.wait_in_line(now_ms))
            answers.append(Throttled(wait_ms, of_key=until_turn_ms > 0 or not limit.value))
    return answers, turn_us


def spread(requests: Sequence[PermitRequest], answers: Sequence[Throttled | None]) -> list[Throttled | None]:
    """Let the refused requests of a key with a rate, whatever their values, ask again one turn after the other.

    `acquire` tells each of them the next turn. The order is that of the requests. None waits for longer than
    `LONGEST_WAIT_MS`.
    """
    refused: Counter[str] = Counter()
    result: list[Throttled | None] = []
    for request, answer in zip(requests, answers, strict=True):
        if answer is not None and answer.of_key and request.interval_us is not None:
            later_ms = -(-refused[request.key] * request.interval_us // 1000)
            answer = answer._replace(wait_ms=min(answer.wait_ms + later_ms, LONGEST_WAIT_MS))
            refused[request.key] += 1
        result.append(answer)
    return result
