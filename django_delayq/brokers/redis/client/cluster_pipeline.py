"""One round trip to several nodes: the calls that are answered, and those that are left to make."""

from collections.abc import Collection, Sequence

from django_delayq.brokers.redis.client.calls import Call, Replies, Reply, SkipUnavailable
from django_delayq.brokers.redis.client.errors import TransientError
from django_delayq.core.errors import BrokerUnavailable


class ClusterPipeline:
    """The calls of one round trip, by their positions, and the outcome of each."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.is_hasty = isinstance(calls, SkipUnavailable)
        self.left = set(range(len(calls)))
        self.must_learn = False
        self._told: dict[int, Reply] = {}
        self._errors: dict[int, BrokerUnavailable] = {}
        self._lost: set[int] = set()

    def calls_of(self, part: Sequence[int]) -> list[Call]:
        """Return the calls at these positions."""
        return [self.calls[i] for i in part]

    def answer(self, i: int, reply: Reply) -> None:
        """Take a reply to a call. If there are several to one call, an error counts, or else the least."""
        told = [reply] if i not in self._told else [self._told[i], reply]
        self._told[i] = next((each for each in told if isinstance(each, Exception)), None) or min(told)
        self.left.discard(i)

    def refuse(self, i: int, error: Exception) -> None:
        """Take an error reply to a call. Raises it if somebody must mend something."""
        if not isinstance(error, BrokerUnavailable):
            raise error from None
        if self.is_hasty or not isinstance(error, TransientError):
            self.give_up([i], error)
        else:
            self.fail([i], error)

    def fail(self, part: Collection[int], error: BrokerUnavailable, *, must_learn: bool = False) -> None:
        """Note that these calls were not made: they are left to make."""
        self.must_learn = self.must_learn or must_learn
        self._errors.update(dict.fromkeys(part, error))

    def lose(self, part: Collection[int], error: BrokerUnavailable) -> None:
        """Note that these calls may have been made: they are left to make, and then count as repeated."""
        self._lost.update(part)
        self.fail(part, error, must_learn=True)

    def give_up(self, part: Collection[int], error: BrokerUnavailable) -> None:
        """Give these calls up: they are not made again."""
        self.left.difference_update(part)
        self._errors.update(dict.fromkeys(part, error))

    def replies(self) -> Replies:
        """Return the outcome of each call: its reply, or the error that it was left with."""
        errors = {i: error for i, error in self._errors.items() if i not in self._told}
        if len(errors) == len(self.calls) and not isinstance(errors[0], TransientError):
            raise errors[0] from None
        found = (self._told[i] if i in self._told else errors[i] for i in range(len(self.calls)))
        return Replies(found, repeated=self._lost & self._told.keys(), is_partial=bool(errors))
