"""What an operator changed of a payload: as the log keeps it, and as it may be shown today."""

from difflib import unified_diff

from django.utils.translation import gettext as _

from django_delayq.admin.payload import is_masked, masked, pretty
from django_delayq.models import MessageRow

_ALL = 1_000_000
_AROUND = 1


def difference(before: str, after: str, around: int = _ALL) -> str:
    """The lines of two payloads, those that differ marked with "-" and "+".

    All of them, unless it is said how many around a difference: then each payload can be had back.
    """
    lines = unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=around)
    return "\n".join(list(lines)[2:])


def shown_difference(kept: str, row: MessageRow) -> str:
    """What the log has kept of a message, short, and as the site's hook masks payloads now.

    What the hook can't mask is hidden: where not all lines were kept, or one of the two was no JSON.
    """
    if not (kept.startswith("@@") or is_masked(row.alias)):
        return kept  # the site's own
    before, after = _side(kept, "-"), _side(kept, "+")
    if is_masked(row.alias):
        try:
            before, after = pretty(masked(row, before)), pretty(masked(row, after))
        except Exception:  # noqa: BLE001  the site's hook: whatever it raises, nothing is shown
            return _("What was changed is hidden, since payloads are masked.")
        if before == after:
            return _("What was changed is masked.")
    return difference(before, after, _AROUND)


def _side(kept: str, mark: str) -> str:
    return "\n".join(line[1:] for line in kept.split("\n") if line[:1] in (" ", mark))
