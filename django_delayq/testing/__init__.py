"""Help a site to test its handlers: with a broker in memory, a clock that can be moved, and a look at what was sent.

```python
class CloseOrderTests(DelayqMixin, TestCase):
    def test_an_unpaid_order_is_closed_after_half_an_hour(self):
        order = open_order()                                  # sends "order.close", in the test's transaction
        self.assert_sent("order.close", data=order.pk, delay="30m")
        run_due(until="30m")
        order.refresh_from_db()
        self.assertEqual(order.state, "closed")
```

pytest finds the fixtures `delayq_memory`, `run_due`, `sent_messages`, `assert_sent` and `assert_not_sent` by itself.

An alias with a store keeps it: its rows are written and read in the test's own transaction, and only the timer is the
broker in memory.

Due times count by Python's clock, even if time-machine or freezegun has moved it. `run_due` moves it too, with one of
them; if neither is installed, messages get older instead.
"""

from django_delayq.testing.broker import VirtualTimeBroker
from django_delayq.testing.memory import DelayqMixin, use_memory_broker
from django_delayq.testing.running import Attempt, arun_due, run_due
from django_delayq.testing.sent import assert_not_sent, assert_sent, sent_messages

__all__ = [
    "Attempt",
    "DelayqMixin",
    "VirtualTimeBroker",
    "arun_due",
    "assert_not_sent",
    "assert_sent",
    "run_due",
    "sent_messages",
    "use_memory_broker",
]
