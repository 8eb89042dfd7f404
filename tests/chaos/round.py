"""A round: workers, senders and faults side by side, then peace, and what is left."""

import json
import os
import subprocess
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing

from tests.chaos import ledger
from tests.chaos.faults import was_refused
from tests.chaos.judge import PROBE, Round
from tests.chaos.places import LEASE_S, Place
from tests.chaos.plan import Plan, Step
from tests.worker.processes import WorkerProcess

MODES = (["--threads", "4"], ["--threads", "4"], ["--threads", "2", "--processes", "2"])
RATE = 8
SENDERS = 2
LEAST_WORKERS = 2
REFUSED = "SELECT 1 FROM delayq_ready WHERE token IS NULL AND error LIKE 'its finish is refused%'"
PEACE_S = 75
"""All that waits has ended by then, after the last fault: what was put off for a jump of the clock too."""


def run_round(place: Place, plan: Plan, steps: Mapping[str, Sequence[Step]]) -> Round:
    """Do these faults, and return what there is to judge."""
    os.environ[ledger.VARIABLE] = str(place.ledger)
    with closing(World(place, plan)) as world:
        world.begin()
        threads = [threading.Thread(target=_harm, args=(world, steps[hit], hit)) for hit in steps]
        for thread in threads:
            thread.start()
        try:
            world.end(harms=len(threads))
            return _left(place)
        finally:
            world.over.set()


def _harm(world: "World", steps: Sequence[Step], hit: str) -> None:
    """Do these faults at their times, or as soon as the one before is over."""
    draw = world.plan.draw(f"harm {hit}")
    for step in steps:
        time.sleep(max(0.0, world.began + step.at - time.monotonic()))
        begin = time.monotonic()
        try:
            step.fault.do(world, draw, step.seconds)
        except Exception:  # noqa: BLE001  the fault is wrong, not the system; the others go on
            note(f"{step} could not be done: {traceback.format_exc()}")
        end = time.monotonic()
        ledger.write(
            "span", name=step.fault.name, begin=begin, end=end, excuses=step.fault.excuses(world.place, begin, end)
        )
    world.healed.release()
    world.over.wait()  # what a thread has started dies with it


def note(finding: str) -> None:
    """Note what is wrong as soon as it is seen."""
    ledger.write("finding", text=finding)


class World:
    """What faults hit: the place, its workers and its senders."""

    def __init__(self, place: Place, plan: Plan) -> None:
        self.place = place
        self.workers: list[WorkerProcess] = []
        self.left: list[WorkerProcess] = []
        self.plan = plan
        self._modes = plan.draw("workers")
        self.began = 0.0
        self.healed = threading.Semaphore(0)
        """Released when all faults that hit one thing are over."""
        self.over = threading.Event()
        self._senders: list[subprocess.Popen[bytes]] = []
        self._number = 0

    def begin(self) -> None:
        """Start workers, wait until they are ready, and start senders."""
        for _ in range(self._modes.randint(LEAST_WORKERS, 3)):
            self.join()
        for worker in self.workers:
            worker.until_says("Queues:")
        self.began = time.monotonic()
        for _ in range(SENDERS):
            self.send()

    def join(self) -> None:
        """Start a worker."""
        self.workers.append(self.place.worker(*self._modes.choice(MODES)))
        self.left.append(self.workers[-1])

    def send(self) -> None:
        """Start a sender."""
        self._number += 1
        seconds = self.began + self.plan.seconds - time.monotonic()
        name = f"s{self._number}"
        seed = f"{self.plan.seed} {self.plan.number} {name}"
        self._senders.append(
            self.place.sender(name, seed, seconds, RATE, ",".join(self.place.keys), self.plan.longest_s)
        )

    def renew_sender(self) -> None:
        """Kill a sender, and start another."""
        sender = self._senders.pop(0)
        sender.kill()
        sender.wait()
        self.send()

    def end(self, harms: int) -> None:
        """Wait until all faults are over and all messages have ended, see that a fresh one runs, and stop."""
        for _ in range(harms):
            self.healed.acquire()
        for sender in self._senders:
            if code := sender.wait(120):
                note(f"A sender ended with {code}: see senders.log")
        for worker in self.workers:
            if worker.has_ended and not was_refused(worker):
                note(f"Worker {worker.pid} ended by itself: see its log")
        while sum(not worker.has_ended for worker in self.workers) < LEAST_WORKERS:
            self.join()
        if self._all_has_ended():
            self.place.sender(PROBE, self.plan.seed, 1, RATE, "plain", 1).wait(60)
            self._all_has_ended()
        for worker in self.workers:
            if not worker.has_ended and (code := worker.stop()):
                note(f"Worker {worker.pid} exited with {code}")

    def _all_has_ended(self) -> bool:
        """Wait for that; False if it takes too long."""
        end = time.monotonic() + PEACE_S
        while self.place.waiting():
            if time.monotonic() > end:
                return False
            if self.place.is_stored and self.place.rows(REFUSED):
                self.place.run("tests.chaos.hurry")
            time.sleep(0.5)
        return True

    def close(self) -> None:
        """End all processes."""
        for sender in self._senders:
            sender.kill()
            sender.wait()
        for number, worker in enumerate(self.left):
            worker.close()
            (self.place.directory / f"worker-{number}-{worker.pid}.log").write_text(worker.text)


def _left(place: Place) -> Round:
    """Return what the system says of itself in the end."""
    audit = json.loads(place.django("delayq", "audit", "--json"))
    if place.is_stored:
        ends = place.rows("SELECT message_id, outcome FROM delayq_finish")
        finishes = place.rows("SELECT message_id, ended_at FROM delayq_finish WHERE outcome = 'finished'")
        ends += place.rows("SELECT message_id, 'error' FROM delayq_error")
    else:
        errors = json.loads(place.django("delayq", "errors", "--json", "--count=1000"))
        ends, finishes = [(error["id"], "error") for error in errors], []
    return Round(
        ledger.read(place.ledger),
        is_stored=place.is_stored,
        lease_s=LEASE_S,
        ends=ends,
        finishes=finishes,
        waiting=place.waiting(),
        effects=[id for (id,) in place.rows("SELECT message_id FROM chaos_effect")],
        differences=audit["differences"],
    )
