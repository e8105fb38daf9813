"""A real Ray cluster with TransferQueue for tests, in processes of its own: a head, and a driver that owns the queue.

The driver can be killed and another one started, as a trainer that dies and comes back. Run as a program, this file is
one of the two: it prints a line when it is ready, and ends in order when its input ends.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Self

import psutil

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AUTH_MODE": "disabled",  # else a process that imported Ray before this was set could not join
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}


class Cluster:
    """A head with four logical processors; `address` is that of its GCS. `drive()` gives it a queue."""

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="rt-", dir="/tmp")  # its sockets' paths must stay under 107 bytes
        self._head = _program("head", self._folder)
        self.address = _line(self._head)
        self._driver: subprocess.Popen[str] | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = psutil.Process(self._head.pid).children(recursive=True)
        self.undrive()
        _end(self._head)
        for left in family:
            if left.is_running():
                left.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def drive(self) -> None:
        """Start the program that makes the queue."""
        self._driver = _program("driver", self.address)
        assert _line(self._driver) == "ready"

    def undrive(self, *, kill: bool = False) -> None:
        """End it, and the queue with it."""
        if self._driver is not None:
            if kill:
                os.killpg(self._driver.pid, signal.SIGKILL)
            _end(self._driver)
            self._driver = None


def _program(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | ENVIRONMENT,
        start_new_session=True,
    )


def _line(program: "subprocess.Popen[str]") -> str:
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("> "):
            return line[2:].strip()
    raise AssertionError(f"{program.args} ended before it was ready")


def _end(program: "subprocess.Popen[str]") -> None:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.close()
    try:
        program.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    program.stdout.close()


def _be(role: str, where: str) -> None:
    import ray

    if role == "head":
        context = ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            _temp_dir=where,
        )
        print(">", context.address_info["gcs_address"], flush=True)
        sys.stdin.read()
    else:
        import transfer_queue

        ray.init(address=where, log_to_driver=False)
        transfer_queue.init()
        print("> ready", flush=True)
        sys.stdin.read()
        transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    _be(*sys.argv[1:])
