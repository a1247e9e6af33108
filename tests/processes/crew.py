"""The parent's side of the workers: starts them, races them, kills them, and listens to what they say."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pauseledger.infrastructure.keys import KeyFile

#: No task may take this long (seconds); a test that waits longer has found something.
PATIENCE = 90.0


class Worker:
    """One process with a ledger of its own."""

    def __init__(self, connection, pid):
        self.pid = pid
        self._connection = connection
        self._heard = b""

    def tell(self, **task):
        """Give it a task, or a word it waits for."""
        self._connection.sendall(json.dumps(task, default=str).encode() + b"\n")

    def hear(self, patience=PATIENCE):
        """Take its next line; None once it is gone."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._heard:
            if not select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"worker {self.pid} said nothing for {patience} s")
            more = self._receive()
            if not more:
                return None
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def _receive(self):
        try:
            return self._connection.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def result(self):
        """Take lines until the task is done."""
        while (said := self.hear()) is not None:
            if said.pop("done", False):
                return said
        raise RuntimeError(f"worker {self.pid} died at its task")

    def ask(self, **task):
        self.tell(**task)
        return self.result()

    def rest(self):
        """Take everything a dead worker said."""
        return list(iter(self.hear, None))

    def send(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """End it at once, as the machine's power would."""
        with suppress(ProcessLookupError):
            self.send(signal.SIGKILL)

    def leave(self):
        """Let it end by itself."""
        self._connection.close()


class Nursery:
    """The process that workers are forked out of: it has imported what they need, and does nothing else.

    `environment` is added to its own: a PYTHONPATH makes them workers of another build.
    """

    def __init__(self, program="worker.py", *arguments, **environment):
        self._control, theirs = socket.socketpair()
        command = [sys.executable, str(Path(__file__).with_name(program)), str(theirs.fileno()), *arguments]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=os.environ | environment)
        theirs.close()

    def fork(self, **config):
        """Fork one worker, and wait for nothing."""
        mine, theirs = socket.socketpair()
        socket.send_fds(self._control, [json.dumps(config).encode()], [theirs.fileno()])
        theirs.close()
        return Worker(mine, int(self._control.makefile().readline()))

    def close(self):
        self._control.close()
        self._process.wait(PATIENCE)


class Crew:
    """Makes workers on one store, of a nursery of its own or of one that is lent; leaves none behind."""

    def __init__(self, url, folder, nursery=None, told=None, **settings):
        keys = str(Path(folder) / "keys")
        self._config = {"url": url, "keys": keys, "settings": {"threads": 2, **settings}, **(told or {})}
        self._workers = []
        self._lent = nursery

    def __enter__(self):
        KeyFile(self.keys).create()
        self._nursery = self._lent or Nursery()
        return self

    def __exit__(self, *_):
        for worker in self._workers:
            worker.kill()
            worker.leave()
        if self._lent is None:
            self._nursery.close()

    @property
    def keys(self):
        return Path(self._config["keys"])

    def worker(self):
        return self.workers(1)[0]

    def workers(self, count):
        """Start so many, and wait until their ledgers are open."""
        made = [self.fork() for _ in range(count)]
        for worker in made:
            assert worker.hear() == {"ready": worker.pid}
        return made

    def fork(self, **other):
        """Start one, on another store where that is said, and wait for nothing."""
        worker = self._nursery.fork(**{**self._config, **other})
        self._workers.append(worker)
        return worker


def race(workers, tasks, lead=0.05):
    """Let each worker begin its task at the same moment, and take all results."""
    moment = time.monotonic() + lead
    for worker, task in zip(workers, tasks, strict=True):
        worker.tell(at=moment, **task)
    return [worker.result() for worker in workers]
