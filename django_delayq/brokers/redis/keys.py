"""The names of everything we keep in one shard of Redis. All but `meta` share the hash tag {prefix:shard}."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Keys:
    """The keys of one shard. docs/internals describes what each holds."""

    prefix: str
    shard: int = 0
    tag: str = field(init=False)
    msg: str = field(init=False)
    state: str = field(init=False)
    running: str = field(init=False)
    suspect: str = field(init=False)
    error: str = field(init=False)
    sets: str = field(init=False)
    timer: str = field(init=False)
    count: str = field(init=False)
    epoch: str = field(init=False)
    cursor: str = field(init=False)
    meta: str = field(init=False)
    channel: str = field(init=False)

    def __post_init__(self) -> None:
        self.tag = f"{{{self.prefix}:{self.shard}}}:"
        for name in ("msg", "state", "running", "suspect", "error", "timer", "count", "epoch", "cursor"):
            setattr(self, name, self.tag + name)
        self.sets = f"{self.tag}keys"
        self.channel = f"{self.tag}wake"
        self.meta = f"{{{self.prefix}:meta}}"

    def wait(self, name: str) -> str:
        """Return the key of the wait set of a name ("queue:key")."""
        return f"{self.tag}wait:{name}"

    def call(self, cell: str) -> str:
        """Return the key of the cell that remembers the answer to one call in flight."""
        return f"{self.tag}call:{cell}"

    def job(self, name: str) -> str:
        """Return the key of a job's ledger: the ids that it has sent."""
        return f"{self.tag}job:{name}"


@dataclass(slots=True)
class LimitKeys:
    """The keys of one limit, all in one cluster slot."""

    prefix: str
    key: str
    value: str
    permits: str = field(init=False)
    line: str = field(init=False)
    turn: str = field(init=False)

    def __post_init__(self) -> None:
        tag = f"{{{self.prefix}:limit:{self.key}}}:"
        self.permits, self.line, self.turn = f"{tag}permits:{self.value}", f"{tag}line:{self.value}", f"{tag}turn"


def set_name(queue: str, key: str) -> str:
    """Return the name of a wait set in `keys`, in `timer` and on the wake-up channel. A queue has no colon in it."""
    return f"{queue}:{key}"
