"""Handlers that the tests of django_delayq.testing run. Each notes what it got in `seen`."""

from datetime import timedelta

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone

from django_delayq import (
    BatchDone,
    Bury,
    Message,
    Retry,
    Snooze,
    acancel_delay_messages,
    cancel_delay_messages,
    delay_execute,
    send_delay_message,
    stop_delay_sequences,
)

seen: list[Message[str]] = []
batches_done: list[BatchDone] = []


@delay_execute(key="testing.note")
def note(message: Message[str]) -> None:
    seen.append(message)


@delay_execute(key="testing.note_async", queue="other")
async def note_async(message: Message[str]) -> None:
    seen.append(message)


def weight_of(shop: str) -> int:
    return {"large": 2, "small": 1, "tiny": 1}[shop]


@delay_execute(key="testing.shared", share_key="{shop}", share_weight=weight_of)
def shared(message: Message[dict[str, str]]) -> None: ...


@delay_execute(key="testing.rated", rate_limit="1/h", rate_key="{}", burst=2)
def rated(message: Message[str]) -> None:
    seen.append(message)


@delay_execute(key="testing.hourly", rate_limit="1/h")
def hourly(message: Message[str]) -> None:
    seen.append(message)


@delay_execute(key="testing.fail", max_attempts=3, backoff=["1h", "2h"])
def fail(message: Message[str]) -> None:
    seen.append(message)
    raise ValueError(message.data)


@delay_execute(key="testing.steer")
def steer(message: Message[str]) -> None:
    seen.append(message)
    if message.data == "bury":
        raise Bury("no use")
    if len(seen) == 1:
        raise Retry("5m") if message.data == "retry" else Snooze("5m")


@delay_execute(key="testing.chain")
def chain(message: Message[int]) -> None:
    seen.append(message)  # type: ignore[arg-type]
    if message.data:
        chain.send(message.data - 1, delay="1d")


@delay_execute(key="testing.daily")
def daily(message: Message[list[str]]) -> None:
    now = timezone.now()
    daily.send([*message.data, now.isoformat()], at=now + timedelta(days=1))


@delay_execute(key="testing.for_ever")
def for_ever(message: Message[str]) -> None:
    send_delay_message("testing.for_ever", message.data)


@delay_execute(key="testing.once", at_most_once=True)
def once(message: Message[str]) -> None:
    seen.append(message)


@delay_execute(key="testing.group")
def make_group(message: Message[str]) -> None:
    Group.objects.get_or_create(name=message.data)


@delay_execute(key="testing.group_async")
async def make_group_async(message: Message[str]) -> None:
    await sync_to_async(Group.objects.get_or_create)(name=message.data)


@delay_execute(key="testing.leave", max_attempts=1)
def leave_open(message: Message[str]) -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name=message.data)


@delay_execute(key="testing.leave_async", max_attempts=1)
async def leave_open_async(message: Message[str]) -> None:
    await sync_to_async(leave_open)(message)


@delay_execute(key="testing.atomic", atomic=True, max_attempts=2, backoff="1m")
def make_group_atomically(message: Message[str]) -> None:
    Group.objects.create(name=message.data)
    if message.attempt == 1 and message.data.startswith("fail"):
        raise ValueError(message.data)


@delay_execute(key="testing.note_atomically", atomic=True)
def note_atomically(message: Message[str]) -> None:
    seen.append(message)


@delay_execute(key="testing.twice", max_attempts=2, backoff="1m")
def make_group_twice(message: Message[str]) -> None:
    Group.objects.create(name=message.data)
    if message.attempt == 1:
        Group.objects.create(name=message.data)


@delay_execute(key="testing.stop_sequences")
def stop_sequences(message: Message[str]) -> None:
    seen.append(message)
    stop_delay_sequences(tag=message.tag or "")


@delay_execute(key="testing.batch_done")
def batch_done(message: Message[BatchDone]) -> None:
    batches_done.append(message.data)


@delay_execute(key="testing.cancel")
def cancel(message: Message[str]) -> None:
    assert cancel_delay_messages(message.data) == 1


@delay_execute(key="testing.stop")
def stop(message: Message[str]) -> None:
    """Cancels itself while it runs, and ends as its data say."""
    message.progress(0.5, "half")
    seen.append(message)
    assert cancel_delay_messages(message.id, running=True, by="alice") == 1
    if message.data == "retry":
        raise Retry("5m")
    if message.data == "look":
        message.ensure_not_cancelled()


@delay_execute(key="testing.stop_async")
async def stop_async(message: Message[str]) -> None:
    await acancel_delay_messages(message.id, running=True, by="alice")
    message.ensure_not_cancelled()
