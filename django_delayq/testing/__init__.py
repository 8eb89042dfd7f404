"""Helpers for the tests of a site: a broker in memory, time that is moved instead of waited for, and looks.

```python
class CloseOrderTests(DelayqMixin, TestCase):
    def test_an_unpaid_order_is_closed_after_half_an_hour(self):
        order = open_order()                                  # sends "order.close", in the test's transaction
        self.assertEqual([m.key for m in sent_messages()], ["order.close"])
        run_due(until="30m")
        order.refresh_from_db()
        self.assertEqual(order.state, "closed")
```

With pytest, `pytest_plugins = ["django_delayq.testing.fixtures"]` in the top `conftest.py` gives the fixtures
`delayq_memory`, `run_due` and `sent_messages`. An alias with a store keeps it: its rows are written and read in the
test's own transaction, and only the timer is the broker in memory.

Without a store the broker's time is moved: `timezone.now()` in a handler is the real time, `message.due_at` the moved
one. With a store the rows are made older: both are the real time.
"""

from django_delayq.testing.broker import DelayqMixin, VirtualTimeBroker, use_memory_broker
from django_delayq.testing.running import Attempt, arun_due, run_due
from django_delayq.testing.sent import sent_messages

__all__ = ["Attempt", "DelayqMixin", "VirtualTimeBroker", "arun_due", "run_due", "sent_messages", "use_memory_broker"]
