"""What this version tells in the header of a message, frozen, and what it makes of a later version's."""

from django_delayq import codec
from django_delayq.brokers.base import Header
from django_delayq.brokers.rabbitmq.notes import NOTE, Note, pack, unpack

NOTE_OF_ALL = Note(
    "a",
    Header("q", "k", True, 1, 2, 3, "vip", "trace", 4, 5),
    6,
    7,
    "clock",
    8.5,
    1,
    2,
    "no",
    "Traceback",
    9,
    "uid",
    "x",
)
FROZEN = (
    '{"id":"a","header":{"queue":"q","key":"k","at_most_once":true,"expires_ms":1,"max_attempts":2,"timeout_ms":3,'
    '"tag":"vip","trace_id":"trace","sent_ms":4,"scheduled_ms":5},"due_ms":6,"hold_ms":7,"clock":"clock","due_s":8.5,'
    '"failures":1,"crashes":2,"error":"no","detail":"Traceback","buried_ms":9,"uid":"uid","after":"x"}'
)


def test_what_is_told_is_what_other_versions_read() -> None:
    assert pack(NOTE_OF_ALL, b"{}").properties["application_headers"][NOTE] == FROZEN
    assert unpack(pack(NOTE_OF_ALL, b"{}")) == (NOTE_OF_ALL, b"{}")


def test_what_a_later_version_tells_beside_is_passed_over() -> None:
    message = pack(NOTE_OF_ALL, b"{}")
    told = codec.loads(FROZEN)
    told["header"]["later"] = told["later"] = 1
    message.properties["application_headers"][NOTE] = codec.dumps(told).decode()
    assert unpack(message) == (NOTE_OF_ALL, b"{}")


def test_a_note_that_is_no_object_is_foreign() -> None:
    message = pack(NOTE_OF_ALL, b"{}")
    message.properties["application_headers"][NOTE] = '{"header": []}'
    assert unpack(message) == (None, b"{}")
