"""Running a command on a home during an accident: killed parts of Waypoint, a full disk, a reboot."""

import collections
import contextlib
import itertools
import os
import random
import re
import subprocess
import time
from pathlib import Path

from tests import hung
from tests.chaos import victims
from tests.homes import Home
from tests.session import full_disks
from waypoint.client.sdk import Client
from waypoint.model.errors import WaypointError

DEADLINE_S = 30.0  # how long an operation may take; it may wait twice for a CRIU that hangs
_PARTS = [part for part in victims.PARTS if part != "criu"]  # a killed CRIU may harm the session (docs/criu.md)
VICTIMS = [*((part,) for part in _PARTS), *itertools.combinations(_PARTS, 2)]
ACCIDENTS = {"nothing": 27, "kill": 64, "full disk": 4, "full disk and kill": 3, "reboot": 2}  # weights
LATEST_S = 0.12  # latest start of an accident; about the duration of the longest operation


def is_message(said: str) -> bool:
    """Whether the text is an error message with a next step."""
    return re.match(r"waypoint: cannot .+: .+\n  next: \S", said) is not None


class Rebooted(Exception):
    """The machine was rebooted while a command ran: no session lives."""


class Accidents:
    """Runs commands on a home, some of them with an accident.

    `done`, `happened`: how many operations and accidents there were, by kind. `away_s`: the longest time that the
    daemon took to answer.
    """

    def __init__(self, home: Home, choose: random.Random) -> None:
        self._home, self._choose = home, choose
        self.done: collections.Counter[str] = collections.Counter()
        self.happened: collections.Counter[str] = collections.Counter()
        self.away_s = 0.0

    def run(self, kind: str, branch: str, *argv: str) -> int:
        """Run `waypoint ARGV`, perhaps with an accident. Returns the exit status.

        Raises Rebooted, and AssertionError if the command failed without a reason.
        """
        self.done[kind] += 1
        (accident,) = self._choose.choices(list(ACCIDENTS), list(ACCIDENTS.values()))
        parts = self._choose.choice(VICTIMS) if "kill" in accident else ()
        is_full = accident.startswith("full disk")
        if is_full:
            full_disks.fill(self._home)
        code, said, ran = self._run_until(self._choose.uniform(0, LATEST_S), accident, parts, argv)
        if is_full:
            full_disks.make_room(self._home)
            full_disks.wait_served(self._home)
        happened = [*(["full disk"] if is_full else []), *ran]
        if happened:
            self.happened["+".join(happened)] += 1
        self._trace(f"{' '.join(argv)}: {code}, {happened}: {said[:300]}")
        is_told = is_full and ("No space left on device" in said or "disk is full" in said)
        assert code == 0 or ran or is_told, f"{argv} gave {code} without a reason: {said}"
        assert code == 0 or "client" in ran or is_message(said), f"{argv} gave {code} and said: {said}"
        if "client" in ran:  # the operation continues without the client: a checkpoint waits for its end
            client = Client(self._home.path)
            with contextlib.suppress(
                WaypointError
            ):  # no session is live: the operation has ended it, or not started it
                client.session(branch).checkpoint("turn", tier="files", force=True)
                client.history.undo(branch=branch)  # so that a later undo finds the operation, not this checkpoint
        return code

    def _run_until(
        self, moment_s: float, accident: str, parts: tuple[str, ...], argv: tuple[str, ...]
    ) -> tuple[int, str, list[str]]:
        """Run the command, and after `moment_s` seconds kill `parts` or reboot. Returns the exit status, stderr, and
        the parts that ran.
        """
        with subprocess.Popen(
            self._home.argv(*argv),
            env=self._home.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as command:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(moment_s)
            if accident == "reboot":
                victims.reboot(self._home, command)
                self.happened["reboot"] += 1
                self._trace(f"{' '.join(argv)}: rebooted")
                raise Rebooted
            ran = victims.kill(self._home, parts, command)
            if not accident.startswith("full disk"):
                self._ask()
            try:
                _, said = command.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired as error:
                error.add_note(hung.describe(self._home.path))
                command.kill()
                raise
        return command.returncode, said.decode(), ran

    def _ask(self) -> None:
        """Measure the time until the daemon answers."""
        begin = time.monotonic()
        Client(self._home.path).status()
        self.away_s = max(self.away_s, time.monotonic() - begin)

    def _trace(self, text: str) -> None:
        if path := os.environ.get("WAYPOINT_TEST_CHAOS_TRACE"):
            with Path(path).open("a") as file:
                file.write(f"{self.done.total()} {text}\n")
