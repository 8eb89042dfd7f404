"""Merge the answers of several shards into one."""

from collections import Counter
from collections.abc import Iterable, Sequence

from django_delayq.brokers.base import Audit, Counts, MaintenanceResult, ServerReport, SetCount, earliest


def merge_upkept(shards: Sequence[MaintenanceResult], away: str) -> MaintenanceResult:
    """Merge the results of upkeep; `away` is why some shards could not be asked.

    If it is "", the first shard that tells what is away counts.
    """
    return MaintenanceResult(
        now_ms=max(one.now_ms for one in shards),
        reclaimed=sum(one.reclaimed for one in shards),
        buried=[info for one in shards for info in one.buried],
        ghosts=[id for one in shards for id in one.ghosts],
        dropped=sum(one.dropped for one in shards),
        suspects_due=sum(one.suspects_due for one in shards),
        next_lease_end_ms=earliest(*(one.next_lease_end_ms for one in shards)),
        lost_record=next((one.lost_record for one in shards if one.lost_record), ""),
        alarms_lost=any(one.alarms_lost for one in shards),
        away=away or next((one.away for one in shards if one.away), ""),
    )


def merge_counts(shards: Sequence[Counts]) -> Counts:
    """Merge all figures."""
    return Counts(
        now_ms=max(one.now_ms for one in shards),
        waiting=_merge_sets(found for one in shards for found in one.waiting),
        running=sum(one.running for one in shards),
        suspects=sum(one.suspects for one in shards),
        error=sum(one.error for one in shards),
        totals=_sum(one.totals for one in shards),
    )


def merge_audits(shards: Sequence[Audit]) -> Audit:
    """Merge audits. Each shard is compared with its own totals, so that one can't make up for what lacks in another."""
    return Audit(
        totals=_sum(one.totals for one in shards),
        places=_sum(one.places for one in shards),
        differences=[difference for one in shards for difference in one.differences],
        notes=[note for one in shards for note in one.notes],
    )


def merge_reports(servers: Sequence[ServerReport]) -> ServerReport:
    """Return the first report, with the problems and warnings of all, each once."""
    first = servers[0]
    first.problems = list(dict.fromkeys(problem for one in servers for problem in one.problems))
    first.warnings = list(dict.fromkeys(warning for one in servers for warning in one.warnings))
    return first


def _merge_sets(found: Iterable[SetCount]) -> list[SetCount]:
    merged: dict[tuple[str, str], SetCount] = {}
    for one in found:
        seen = merged.setdefault((one.queue, one.key), SetCount(one.queue, one.key, 0, 0, None))
        seen.pending += one.pending
        seen.ready += one.ready
        seen.next_due_ms = earliest(seen.next_due_ms, one.next_due_ms)
    return [merged[name] for name in sorted(merged)]


def _sum(totals: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in totals:
        total.update(one)
    return dict(total)
