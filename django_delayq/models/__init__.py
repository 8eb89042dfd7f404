"""Define the store's tables. A message is a row in exactly one of three, and keeps its primary key when it moves.

The statements that write rows are in django_delayq/store/. These models are for queries, migrations and the admin.
Don't change messages through them: a message that is changed regardless of its lease may run twice, or be lost.
"""

from datetime import datetime
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq.core.figures import COUNTS
from django_delayq.core.kept import decode
from django_delayq.core.message import MOST_PROGRESS, all_tags
from django_delayq.core.shares import MOST_SHARE
from django_delayq.models.fields import InstantField, NameField
from django_delayq.models.indexes import PageIndex, PartialIndex, ShareIndex
from django_delayq.support.sanitize import one_line
from django_delayq.support.timestamps import from_ms
from django_delayq.support.validation import MAX_NAME


class MessageRow(models.Model):
    """The columns that all three tables of messages have. `message_id` is the message's id; `pk` is the row's own key.

    `history` holds the earlier attempts (django_delayq/core/history.py). `worker` and `started_at` are about the last
    claim. While the message is leased, `started_at` is when it was claimed; after its end, when its handler started. If
    the message was buried because its lease ran out, `started_at` is still when it was claimed; if it was buried before
    its handler started, `started_at` is empty. Both are empty if the message waits, or was
    cancelled while it waited.

    The `max_wait` of sends counts from `first_at`; if it is empty, from `sent_at`.
    """

    alias = NameField(_("alias"), max_length=MAX_NAME)
    message_id = NameField(_("id"), max_length=MAX_NAME)
    queue = NameField(_("queue"), max_length=MAX_NAME)
    key = NameField(_("key"), max_length=MAX_NAME)
    data = models.TextField(_("data"))  # JSON as it was sent: a JSONField would change numbers, and refuse "\u0000"
    tag = NameField(_("tag"), max_length=MAX_NAME, null=True)
    trace_id = NameField(_("trace id"), max_length=MAX_NAME, null=True)
    due_at = InstantField(_("due at"))
    scheduled_at = InstantField(_("scheduled at"))
    sent_at = InstantField(_("sent at"))
    expires_at = InstantField(_("expires at"), null=True)
    max_attempts = models.PositiveIntegerField(_("max attempts"), null=True)
    timeout_ms = models.BigIntegerField(_("time-out in ms"), null=True)
    at_most_once = models.BooleanField(_("at most once"))
    failures = models.PositiveIntegerField(_("failures"))
    crashes = models.PositiveSmallIntegerField(_("crashes"))
    error = models.TextField(_("last error"))
    worker = NameField(_("worker"), max_length=MAX_NAME)
    started_at = InstantField(_("started at"), null=True)
    history = models.TextField(_("history"))
    version = models.IntegerField(_("version of the data"), null=True)  # empty is 1; a check would read whole tables
    share = NameField(_("share"), max_length=MOST_SHARE, null=True)

    more_tags: tuple[str, ...] = ()
    """The tags after the first, once store/tags.py has read them."""
    first_at = InstantField(_("first sent at"), null=True)
    merged: Any = None
    """How many sends were merged into the message; None stands for 0."""
    again: Any = None
    """The send that was kept until the run ends (django_delayq/core/kept.py); None if there is none."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return one_line(f"{self.key} {self.message_id}")  # Django shows it as it is, in its log too

    @property
    def merged_sends(self) -> int:
        """Return how many sends were merged, also into the one that was kept until the run ends."""
        return (self.merged or 0) + (0 if self.again is None else decode(self.again).merged)

    @property
    def again_at(self) -> datetime | None:
        """Return when the send is due that was kept until the run ends; None if there is none."""
        return None if self.again is None else from_ms(decode(self.again).due_ms)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags of the message that are known: `tag`, and `more_tags`."""
        return all_tags(self.tag, self.more_tags)


class ReadyMessage(MessageRow):
    """A message that waits or runs. While it has a `token`, which proves the lease, it runs, even past `lease_until`.

    `interrupted` means that the stop of its worker has cut the lease short: no crash is counted when it runs out.
    `cancel_at` and `cancel_by` say when somebody asked to cancel it while it runs, and who. `progress` is how far its
    handler is (`read_progress` in core/message.py), as the last renewal of its lease wrote it.
    `placed` is not used any more. The previous release still writes it, and the next one will drop it.
    """

    id = models.BigAutoField(primary_key=True)
    lease_until = InstantField(_("leased until"), null=True)
    token = models.BigIntegerField(_("token"), null=True)
    placed = models.BooleanField(_("placed"), db_default=False)
    interrupted = models.BooleanField(_("interrupted"), db_default=False)  # inserts leave it out
    merged = models.PositiveIntegerField(_("merged sends"), null=True)
    again = models.TextField(_("runs again with"), null=True)  # noqa: DJ001 - inserts leave it out
    cancel_at = InstantField(_("asked to cancel at"), null=True)
    cancel_by = NameField(_("asked to cancel by"), max_length=MAX_NAME, null=True)
    progress = NameField(_("progress"), max_length=MOST_PROGRESS, null=True)

    class Meta:
        db_table = "delayq_ready"
        verbose_name = _("open message")
        verbose_name_plural = _("open messages")
        permissions = [  # for the messages of every table
            ("view_payload", "Can see the payloads of messages"),
            ("view_error", "Can see the errors of messages"),
            ("rescue_message", "Can rescue failed messages: run them again"),
            ("cancel_message", "Can cancel waiting messages"),
            ("reschedule_message", "Can change when messages are due"),
            ("edit_payload", "Can change the payloads of messages"),
            ("pause_queue", "Can pause and resume queues and keys"),
            ("send_again", "Can send messages again that have ended"),
        ]
        # The id comes first, so that PostgreSQL can find a row by it alone: see `Dialect.of_alias_by_id`.
        constraints = [models.UniqueConstraint(fields=["message_id", "alias"], name="delayq_ready_id")]
        indexes = [
            models.Index(fields=["alias", "queue", "key", "due_at"], name="delayq_ready_due"),
            # MySQL and MariaDB ignore conditions, so an index has the column of its condition after the alias.
            models.Index(
                fields=["alias", "crashes", "due_at"], condition=models.Q(crashes__gte=1), name="delayq_ready_suspect"
            ),
            PartialIndex(
                fields=["alias", "due_at", "id"],
                condition=models.Q(at_most_once=True),
                column="at_most_once",
                name="delayq_ready_once",
            ),
            models.Index(fields=["alias", "tag"], condition=models.Q(tag__isnull=False), name="delayq_ready_tag"),
            PageIndex(fields=["alias", "due_at", "id"], name="delayq_ready_list"),
            models.Index(
                fields=["alias", "failures", "due_at"], condition=models.Q(failures__gt=0), name="delayq_ready_retried"
            ),
            ShareIndex(
                fields=["alias", "queue", "key", "share", "due_at"],
                condition=models.Q(share__isnull=False),
                name="delayq_ready_share",
            ),
        ]


class FinishMessage(MessageRow):
    """A message that ended well, or was cancelled."""

    class Outcome(models.TextChoices):
        """How a message left the ready table."""

        FINISHED = "finished", _("finished")
        CANCELLED = "cancelled", _("cancelled")

    id = models.BigIntegerField(primary_key=True)
    merged = models.IntegerField(_("merged sends"), null=True)  # a check would read the whole table
    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome)
    ended_at = InstantField(_("ended at"))

    class Meta:
        db_table = "delayq_finish"
        verbose_name = _("finished message")
        verbose_name_plural = _("finished messages")
        indexes = [
            models.Index(fields=["alias", "ended_at"], name="delayq_finish_ended"),
            models.Index(fields=["alias", "message_id"], name="delayq_finish_id"),
            models.Index(fields=["alias", "tag"], condition=models.Q(tag__isnull=False), name="delayq_finish_tag"),
            models.Index(fields=["alias", "queue", "key", "ended_at"], name="delayq_finish_pair"),
            models.Index(
                fields=["alias", "ended_at"], condition=models.Q(outcome="cancelled"), name="delayq_finish_cancelled"
            ),
            models.Index(
                fields=["alias", "failures", "ended_at"],
                condition=models.Q(failures__gt=0),
                name="delayq_finish_retried",
            ),
        ]


class ErrorMessage(MessageRow):
    """A message that was buried, with the traceback of its last attempt in `detail`.

    `fingerprint` is the same for failures of one kind: the exception's type, and the site's function that raised it.
    """

    id = models.BigIntegerField(primary_key=True)
    merged = models.IntegerField(_("merged sends"), null=True)  # as in `FinishMessage`
    detail = models.TextField(_("traceback"))
    fingerprint = NameField(_("fingerprint"), max_length=MAX_NAME)
    ended_at = InstantField(_("buried at"))

    class Meta:
        db_table = "delayq_error"
        verbose_name = _("failed message")
        verbose_name_plural = _("failed messages")
        indexes = [
            models.Index(fields=["alias", "ended_at"], name="delayq_error_ended"),
            models.Index(fields=["alias", "message_id"], name="delayq_error_id"),
            models.Index(fields=["alias", "tag"], condition=models.Q(tag__isnull=False), name="delayq_error_tag"),
            models.Index(fields=["alias", "key", "ended_at"], name="delayq_error_key"),
            models.Index(fields=["alias", "fingerprint", "ended_at"], name="delayq_error_kind"),
            models.Index(fields=["alias", "queue", "ended_at"], name="delayq_error_queue"),
            models.Index(fields=["alias", "failures", "ended_at"], name="delayq_error_failures"),
        ]


class AnyMessage(ReadyMessage):
    """A message of any of the three tables. It has no rows of its own: it gives the admin's page of all its place."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("message")
        verbose_name_plural = _("messages")


class TagRow(models.Model):
    """A tag after the first of the message whose primary key is `message_pk`; see store/tags.py.

    The message may be gone: then the tag leads nowhere.
    """

    id = models.BigAutoField(primary_key=True)  # in the order in which a message's tags were given
    alias = NameField(_("alias"), max_length=MAX_NAME)
    tag = NameField(_("tag"), max_length=MAX_NAME)
    message_pk = models.BigIntegerField("message's row")

    class Meta:
        db_table = "delayq_tag"
        verbose_name = "further tag"
        verbose_name_plural = "further tags"
        # The tag comes first, so that the admin finds it without an alias
        constraints = [models.UniqueConstraint(fields=["tag", "alias", "message_pk"], name="delayq_tag_names")]
        indexes = [models.Index(fields=["message_pk"], name="delayq_tag_of")]

    def __str__(self) -> str:
        return f"{self.alias} {self.tag}"


class RuleRow(models.Model):
    """The rule that gave a message its due time (core/rules.py, store/rules.py). It has the primary key of the message.

    It gave `due_at`. If the message is due at another time, that time came from elsewhere. The message may be gone.
    """

    id = models.BigIntegerField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    rule = models.TextField("rule")
    due_at = InstantField(_("due at"))

    class Meta:
        db_table = "delayq_rule"
        verbose_name = "rule of a due time"
        verbose_name_plural = "rules of due times"

    def __str__(self) -> str:
        return f"{self.alias} {self.pk}"


class PayloadDifference(models.Model):
    """A change of a message's payload by an operator. Both the old and the new payload can be restored from it.

    It is kept as long as the message, whose primary key is `message_pk`. Django's log keeps only `mark`, a salted hash.
    """

    id = models.BigAutoField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    message_id = NameField(_("id"), max_length=MAX_NAME)
    message_pk = models.BigIntegerField("message's row")
    at = InstantField("at")
    who = NameField("who", max_length=MAX_NAME)
    mark = models.CharField("mark", max_length=32)
    difference = models.TextField("difference")

    class Meta:
        db_table = "delayq_difference"
        verbose_name = "change of a payload"
        verbose_name_plural = "changes of payloads"
        indexes = [models.Index(fields=["message_pk"], name="delayq_difference_of")]

    def __str__(self) -> str:
        return f"{self.alias} {self.message_id} {self.at:%Y-%m-%d %H:%M}"


class Tally(models.Model):
    """The number of rows that were removed for good, by what became of them (`name`), so that audits add up."""

    alias = NameField(_("alias"), max_length=MAX_NAME)
    name = models.CharField(_("name"), max_length=20)
    count = models.BigIntegerField(_("count"))

    class Meta:
        db_table = "delayq_tally"
        verbose_name = _("tally")
        verbose_name_plural = _("tallies")
        constraints = [models.UniqueConstraint(fields=["alias", "name"], name="delayq_tally_name")]

    def __str__(self) -> str:
        return f"{self.alias} {self.name}: {self.count}"


class PauseRow(models.Model):
    """A pause: workers start nothing of this queue and key. An empty queue or key stands for all of them."""

    alias = NameField(_("alias"), max_length=MAX_NAME)
    queue = NameField(_("queue"), max_length=MAX_NAME, blank=True)
    key = NameField(_("key"), max_length=MAX_NAME, blank=True)
    reason = NameField(_("reason"), max_length=MAX_NAME)
    paused_at = InstantField(_("paused at"))
    until = InstantField(_("until"), null=True, blank=True)

    class Meta:
        db_table = "delayq_pause"
        verbose_name = _("pause")
        verbose_name_plural = _("pauses")
        constraints = [models.UniqueConstraint(fields=["alias", "queue", "key"], name="delayq_pause_names")]

    def __str__(self) -> str:
        return f"{self.alias} {self.queue or '*'} {self.key or '*'}"


class LaneRow(models.Model):
    """A lane of a queue to which a message was sent (django_delayq/core/lanes.py). It may have several rows."""

    alias = NameField(_("alias"), max_length=MAX_NAME)
    name = NameField("name", max_length=MAX_NAME)

    class Meta:
        db_table = "delayq_lane"
        verbose_name = "lane"
        verbose_name_plural = "lanes"

    def __str__(self) -> str:
        return f"{self.alias} {self.name}"


class ReportRow(models.Model):
    """The figures of one key in one queue for one hour, from the last report that was saved. Times are in ms.

    `delayq_spark report --admin` writes these rows, and only the admin reads them.
    """

    alias = NameField(_("alias"), max_length=MAX_NAME)
    hour = InstantField(_("hour"))
    queue = NameField(_("queue"), max_length=MAX_NAME)
    key = NameField(_("key"), max_length=MAX_NAME)
    messages = models.BigIntegerField(_("messages"))
    finished = models.BigIntegerField(_("finished"))
    failed = models.BigIntegerField(_("failed"))
    cancelled = models.BigIntegerField(_("cancelled"))
    retried = models.BigIntegerField(_("retried"))
    lateness_p50 = models.BigIntegerField(null=True)
    lateness_p95 = models.BigIntegerField(null=True)
    lateness_p99 = models.BigIntegerField(null=True)
    duration_p50 = models.BigIntegerField(null=True)
    duration_p95 = models.BigIntegerField(null=True)
    duration_p99 = models.BigIntegerField(null=True)
    fingerprint = NameField(_("most frequent kind of failure"), max_length=MAX_NAME)

    class Meta:
        db_table = "delayq_report"
        verbose_name = _("hour of the report")
        verbose_name_plural = _("report: hours")
        constraints = [
            models.UniqueConstraint(fields=["alias", "queue", "key", "hour"], name="delayq_report_names"),
        ]
        indexes = [models.Index(fields=["alias", "hour"], name="delayq_report_hour")]

    def __str__(self) -> str:
        return f"{self.alias} {self.hour:%Y-%m-%d %H:00} {self.queue} {self.key}"


class FigureRow(models.Model):
    """Counts of how attempts ended; see store/figures.py.

    `at` is when the minute, hour or day of the row begins; in a total, it is the last minute that was added. There is a
    column for each of `COUNTS`. Several rows may have the same `at`: readers add them up.
    """

    class Period(models.TextChoices):
        """The span of time that a row sums up.

        `new` is a minute of one queue and key, as one worker counted it. `minute` is for all queues and keys together.
        The others are for one queue and key.
        """

        NEW = "new"
        MINUTE = "minute"
        HOUR = "hour"
        DAY = "day"
        TOTAL = "total"

    id = models.BigIntegerField(primary_key=True)  # the writer draws it, so that writing a row again changes nothing
    alias = NameField(_("alias"), max_length=MAX_NAME)
    period = models.CharField("period", max_length=6, choices=Period)
    at = models.BigIntegerField("at")  # in epoch ms, as all that reads and adds up these rows is SQL
    queue = NameField(_("queue"), max_length=MAX_NAME)
    key = NameField(_("key"), max_length=MAX_NAME)

    class Meta:
        db_table = "delayq_figure"
        verbose_name = "figures of a queue and key"
        verbose_name_plural = "figures of queues and keys"
        indexes = [models.Index(fields=["alias", "period", "at"], name="delayq_figure_at")]

    def __str__(self) -> str:
        return f"{self.alias} {self.period} {from_ms(self.at):%Y-%m-%d %H:%M} {self.queue} {self.key}"


for _name in COUNTS:
    FigureRow.add_to_class(_name, models.BigIntegerField(_name))


class Schedule(models.Model):
    """A rule that recurs, and how far it has got: each occurrence is a message. See django_delayq/store/schedules.py.

    Don't change it through the model: `schedule_delay_message` also moves the message of the next occurrence.
    """

    class Origin(models.TextChoices):
        """The place that the schedule comes from."""

        CODE = "code", _("code")
        CALL = "call", _("call")
        ADMIN = "admin", _("admin")

    id = models.BigAutoField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    name = NameField(_("name"), max_length=MAX_NAME)
    origin = models.CharField(_("origin"), max_length=10, choices=Origin)
    key = NameField(_("key"), max_length=MAX_NAME)
    header = models.TextField("header")  # of each message, as JSON
    data = models.TextField(_("data"))
    rule = models.TextField(_("rule"))  # as JSON: django_delayq/core/recurrence.py
    window = models.TextField(_("window"), blank=True)  # with the spread, as JSON
    start_at = InstantField(_("start"), null=True, blank=True)
    until_at = InstantField(_("until"), null=True, blank=True)
    most = models.PositiveIntegerField(_("most occurrences"), null=True, blank=True)
    put_count = models.PositiveIntegerField(_("occurrences so far"), default=0)
    catch_up = models.CharField(_("catch-up"), max_length=10)
    overlap = models.CharField(_("overlap"), max_length=10)
    last_at = InstantField(_("last occurrence"), null=True)  # the last that was put, which may be still to come
    message_id = NameField(_("id of its message"), max_length=MAX_NAME)
    # When maintenance looks after it; None if it is paused or gone, or there are no more
    look_at = InstantField(_("looked at again"), null=True)
    paused_at = InstantField(_("paused at"), null=True)
    reason = NameField(_("reason"), max_length=MAX_NAME, blank=True)
    gone_at = InstantField(_("not in the code since"), null=True)
    error = models.TextField(_("error"), blank=True)

    class Meta:
        db_table = "delayq_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("pause_schedule", "Can pause and resume schedules"),
            ("run_schedule", "Can run occurrences of schedules"),
        ]
        constraints = [models.UniqueConstraint(fields=["name", "alias"], name="delayq_schedule_name")]
        indexes = [models.Index(fields=["alias", "look_at"], name="delayq_schedule_look")]

    def __str__(self) -> str:
        return one_line(self.name)


class SequenceRow(models.Model):
    """A sequence under way: the plan with which it was started, and the step that it has come to.

    See django_delayq/store/sequences.py. `message_id` is the id of that step's message. Once `stopped_at` is set, that
    message runs, and nothing comes after it; but if `restarts` is set, the plan begins anew then.
    """

    id = models.BigAutoField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    name = NameField(_("name"), max_length=MAX_NAME)
    sequence_id = NameField(_("id"), max_length=MAX_NAME)
    plan = models.TextField("plan")  # as JSON: the `PlannedStep`s of django_delayq/core/sequences.py
    data = models.TextField(_("data"))
    step = models.PositiveSmallIntegerField("step")
    message_id = NameField("id of its message", max_length=MAX_NAME)
    started_at = InstantField(_("started at"))
    look_at = InstantField("looked at again")
    stopped_at = InstantField("stopped at", null=True)
    restarts = models.BooleanField("restarts", default=False)

    class Meta:
        db_table = "delayq_sequence"
        verbose_name = "sequence"
        verbose_name_plural = "sequences"
        constraints = [models.UniqueConstraint(fields=["sequence_id", "name", "alias"], name="delayq_sequence_names")]
        indexes = [
            models.Index(fields=["message_id", "alias"], name="delayq_sequence_of"),
            models.Index(fields=["alias", "look_at"], name="delayq_sequence_look"),
        ]

    def __str__(self) -> str:
        return one_line(f"{self.name} {self.sequence_id}")


class SequenceTag(models.Model):
    """A tag of the sequence whose primary key is `sequence_pk`; its messages have it too."""

    id = models.BigAutoField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    tag = NameField(_("tag"), max_length=MAX_NAME)
    sequence_pk = models.BigIntegerField("sequence's row")

    class Meta:
        db_table = "delayq_sequence_tag"
        verbose_name = "tag of a sequence"
        verbose_name_plural = "tags of sequences"
        constraints = [models.UniqueConstraint(fields=["tag", "alias", "sequence_pk"], name="delayq_sequence_tags")]
        indexes = [models.Index(fields=["sequence_pk"], name="delayq_sequence_tag_of")]

    def __str__(self) -> str:
        return f"{self.alias} {self.tag}"


class BatchRow(models.Model):
    """A batch of messages that have not all ended (django_delayq/store/batches.py).

    `batch_id` is also the id of the message that follows, and `header` and `data` are that message's.
    """

    id = models.BigAutoField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    batch_id = NameField("id", max_length=MAX_NAME)
    header = models.TextField("header")
    data = models.TextField(_("data"))
    total = models.PositiveIntegerField("members")
    look_at = InstantField("looked at again")

    class Meta:
        db_table = "delayq_batch"
        verbose_name = "batch"
        verbose_name_plural = "batches"
        constraints = [models.UniqueConstraint(fields=["batch_id", "alias"], name="delayq_batch_id")]
        indexes = [models.Index(fields=["alias", "look_at"], name="delayq_batch_look")]

    def __str__(self) -> str:
        return f"{self.alias} {self.batch_id}"


class ActionRow(models.Model):
    """A bulk action that can be undone (django_delayq/store/undo.py): who did what, and whether it was undone."""

    id = models.BigAutoField(primary_key=True)
    alias = NameField(_("alias"), max_length=MAX_NAME)
    name = NameField("name", max_length=MAX_NAME)
    kind = models.CharField("kind", max_length=20)
    by = NameField("by", max_length=MAX_NAME, blank=True)
    acted_at = InstantField("acted at")
    undone_at = InstantField("undone at", null=True)
    undone_by = NameField("undone by", max_length=MAX_NAME, blank=True)

    class Meta:
        db_table = "delayq_action"
        verbose_name = _("bulk action")
        verbose_name_plural = _("bulk actions")
        constraints = [models.UniqueConstraint(fields=["name", "alias"], name="delayq_action_name")]
        indexes = [models.Index(fields=["alias", "acted_at"], name="delayq_action_acted")]

    def __str__(self) -> str:
        return f"{self.alias} {self.name}"


class UndoRow(models.Model):
    """What puts a message back that a bulk action has changed (django_delayq/store/undo.py).

    `due_at`, `sent_at` and `attempts` are the message's as the action left it; a cancelled message needs none of them.
    `was_due_at` and `was_scheduled_at` are there if the action changed the due time. The message may be gone.
    """

    id = models.BigAutoField(primary_key=True)
    action_pk = models.BigIntegerField("action's row")
    message_pk = models.BigIntegerField("message's row")
    due_at = InstantField("due at", null=True)
    sent_at = InstantField("sent at", null=True)
    attempts = models.PositiveIntegerField("failures and crashes", default=0)
    was_due_at = InstantField("was due at", null=True)
    was_scheduled_at = InstantField("was scheduled at", null=True)

    class Meta:
        db_table = "delayq_undo"
        verbose_name = "message of a bulk action"
        verbose_name_plural = "messages of bulk actions"
        constraints = [models.UniqueConstraint(fields=["action_pk", "message_pk"], name="delayq_undo_of")]

    def __str__(self) -> str:
        return f"{self.action_pk} {self.message_pk}"


class LimitRow(models.Model):
    """The permits of a key, or of one value of its `concurrency_key`, and when the key's next start is allowed.

    See django_delayq/core/limits.py. `slots` is JSON: when the permit of each token ends. If several rows have the same
    alias, key and value, the one of the highest version counts: see django_delayq/store/limits.py.
    """

    alias = NameField(_("alias"), max_length=MAX_NAME)
    key = NameField(_("key"), max_length=MAX_NAME)
    value = NameField("value", max_length=MAX_NAME, blank=True)
    slots = models.TextField("slots")
    line_ms = models.BigIntegerField("line ends")
    since_ms = models.BigIntegerField("full since")
    looked_ms = models.BigIntegerField("last look", default=0, db_default=0)
    turn_us = models.BigIntegerField("next turn")
    over_ms = models.BigIntegerField("over")
    version = models.BigIntegerField("version", default=0, db_default=0)

    class Meta:
        db_table = "delayq_limit"
        verbose_name = "limit"
        verbose_name_plural = "limits"
        constraints = [models.UniqueConstraint(fields=["alias", "key", "value", "version"], name="delayq_limit_names")]
        indexes = [models.Index(fields=["over_ms"], name="delayq_limit_over")]

    def __str__(self) -> str:
        return f"{self.alias} {self.key} {self.value}"


class HeartbeatRow(models.Model):
    """The heartbeat of a worker, as JSON, if the database is the broker.

    See django_delayq/brokers/database/heartbeats.py.
    """

    alias = NameField(_("alias"), max_length=MAX_NAME)
    worker = NameField("worker", max_length=MAX_NAME)
    info = models.TextField("info")
    seen_ms = models.BigIntegerField("seen")

    class Meta:
        db_table = "delayq_heartbeat"
        verbose_name = "heartbeat"
        verbose_name_plural = "heartbeats"
        indexes = [models.Index(fields=["alias", "seen_ms"], name="delayq_heartbeat_seen")]

    def __str__(self) -> str:
        return f"{self.alias} {self.worker}"


class ReturnedValue(models.Model):
    """The value that the last finished task under an id returned, as JSON. See django_delayq/store/returned.py."""

    alias = NameField(_("alias"), max_length=MAX_NAME)
    message_id = NameField(_("id"), max_length=MAX_NAME)
    value = models.TextField("returned value")
    returned_at = InstantField("returned at")

    class Meta:
        db_table = "delayq_returned"
        verbose_name = "returned value"
        verbose_name_plural = "returned values"
        constraints = [models.UniqueConstraint(fields=["alias", "message_id"], name="delayq_returned_id")]
        indexes = [models.Index(fields=["alias", "returned_at"], name="delayq_returned_at")]

    def __str__(self) -> str:
        return f"{self.alias} {self.message_id}"


class StoreIdentity(models.Model):
    """The identity of an alias's store, which distinguishes it from the stores of other sites on the same broker.

    There is another row for each broker that bore the mark of this store (store/mark.py). It has a digest and the
    place of that broker instead of the alias.
    """

    alias = NameField(_("alias"), max_length=MAX_NAME)
    identity = models.CharField("identity", max_length=16)

    class Meta:
        db_table = "delayq_identity"
        verbose_name = "store's identity"
        verbose_name_plural = "stores' identities"
        constraints = [models.UniqueConstraint(fields=["alias"], name="delayq_identity_alias")]

    def __str__(self) -> str:
        return f"{self.alias} {self.identity}"
