"""List the queues that are compared, each at its best documented setting. An adapter in `peers` has its name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contender:
    """A queue in one setting. `beside` is the one of ours that its figures are divided by.

    The servers that `on` names hold the messages. `share` is its share of the messages of a drain: a slow one gets
    fewer, so that it takes no minutes.
    """

    name: str
    title: str
    on: str
    beside: str
    setting: str
    share: float = 0.1


CONTENDERS = (
    Contender("delayq_redis", "django-delayq, Redis alone", "Redis", "delayq_redis", "`STORE` None, else defaults", 1),
    Contender(
        *("bullmq", "BullMQ", "Redis", "delayq_redis"),
        setting="`concurrency` 50, `removeOnComplete`, `addBulk` of 1,000, 3 attempts",
        share=0.5,
    ),
    Contender(
        *("celery", "Celery", "Redis", "delayq_redis"),
        setting=(
            "`acks_late`, `reject_on_worker_lost`, results ignored, 8 threads, `prefetch_multiplier` 128,"
            " `visibility_timeout` 30 s longer than the longest delay"
        ),
    ),
    Contender(
        *("dramatiq", "dramatiq", "Redis", "delayq_redis"),
        setting=(
            "one process of 8 threads, `dramatiq_queue_prefetch` 1,000, `dramatiq_worker_timeout` 100 ms,"
            " `heartbeat_timeout` 15 s, `maintenance_chance` 100,000 in a million"
        ),
    ),
    Contender("huey", "Huey", "Redis", "delayq_redis", "`RedisHuey`, 4 threads, no results", 0.2),
    Contender(
        *("rq", "RQ", "Redis", "delayq_redis"),
        setting=(
            "`SimpleWorker` with its scheduler, 3 retries, `default_timeout` 10 s, `result_ttl` 0,"
            " `--maintenance-interval 10`, `--worker-ttl 30`, `enqueue_many` of 1,000"
        ),
    ),
    Contender("delayq", "django-delayq", "PostgreSQL and Redis", "delayq", "defaults", 1),
    Contender("delayq_database", "django-delayq, PostgreSQL alone", "PostgreSQL", "delayq", "`DatabaseBroker`", 1),
    Contender(
        *("delayq_tasks", "django-delayq by Django's tasks", "PostgreSQL and Redis", "delayq"),
        setting="`DelayqBackend`; many in one transaction",
        share=0.2,
    ),
    Contender(
        *("by_hand", "a loop by hand", "PostgreSQL", "delayq"),
        setting="ORM, `SKIP LOCKED`, 100 rows a transaction, one thread, a look each 100 ms",
        share=1,
    ),
    Contender(
        *("procrastinate", "Procrastinate", "PostgreSQL", "delayq"),
        setting=(
            "`concurrency` 8, LISTEN/NOTIFY and a look each 0.5 s, `delete_jobs` successful, `batch_defer` of 1,000,"
            " its recipe for stalled jobs each minute"
        ),
    ),
    Contender(
        *("django_tasks_db", "django-tasks-db", "PostgreSQL", "delayq"),
        setting="`--interval 0.1`; many in one transaction",
    ),
    Contender(
        *("django_ox", "django-ox", "PostgreSQL", "delayq"),
        setting="`--concurrency 4`, `--interval 0.1`, `LOCK_TIMEOUT` 15 s, `CONN_MAX_AGE` 600, `enqueue_many`",
    ),
)
BY_NAME = {contender.name: contender for contender in CONTENDERS}
