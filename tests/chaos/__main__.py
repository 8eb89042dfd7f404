"""`make chaos SECONDS=120 SEED=1`: rounds of all kinds of faults at random times, each on another place, for so long.

A round starts real servers, workers and senders (places.py), does what its plan says (plan.py, faults.py), lets all
heal, and holds the ledger (ledger.py) against the README's promises (judge.py). The plan is drawn from the seed before
the round begins, and printed. Exits 1 at the first round in which something is wrong, and keeps its directory.

PLACES=postgresql,sqlite takes only these; ONLY="fill redis,kill redis" draws from these faults; ROUND=5 begins with the
fifth round; ROUND_S=30 makes rounds longer.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.judge import judge
from tests.chaos.places import PLACES, place
from tests.chaos.plan import Plan
from tests.chaos.round import run_round

SHOWN = 30


def main() -> int:
    """Rounds until the time is over. The exit code."""
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    end = time.monotonic() + float(os.environ.get("SECONDS") or "120")
    names = (os.environ.get("PLACES") or ",".join(PLACES)).split(",")
    seconds = float(os.environ.get("ROUND_S") or "20")
    say(f"seed {seed}")
    random.Random(seed).shuffle(names)
    only = [name.strip() for name in (os.environ.get("ONLY") or "").split(",") if name]
    number = int(os.environ.get("ROUND") or "1")
    while True:
        plan = Plan(seed, number, names[(number - 1) % len(names)], seconds, only)
        if _round(plan):
            again = f"SECONDS=1 SEED={seed} PLACES={plan.place} ROUND={number} ROUND_S={seconds:g}"
            say(f"again: make chaos {again}" + (f' ONLY="{",".join(only)}"' if only else ""))
            return 1
        if time.monotonic() >= end:
            return 0
        number += 1


def _round(plan: Plan) -> int:
    """Run a round and give how many findings it has."""
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{plan.seed}-{plan.number}-", dir="/tmp"))
    directory.chmod(0o755)
    began = time.monotonic()
    with place(plan.place, plan.draw("place"), directory) as found:
        say(f"round {plan.number}: {found.story}")
        steps = plan.steps(found)
        for hit, each in steps.items():
            say(f"  {hit}: {', '.join(map(str, each))}")
        seen = run_round(found, plan, steps)
    findings = judge(seen)
    took = f"{time.monotonic() - began:.0f} s"
    say(f"  {len(seen.ledger.asks):,} asked, {len(seen.ledger.runs):,} runs, {took}: {len(findings)} wrong")
    for finding in findings[:SHOWN]:
        say(f"  - {finding}")
    if findings:
        say(f"  The ledger and the logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return len(findings)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
