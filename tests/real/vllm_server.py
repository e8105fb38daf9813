"""A real vLLM over a tiny random Qwen3, started once for the whole test session.

Eager and in fp32, one process; no prefix cache, so that a call's numbers depend on nothing that ran before it.
`ROLLTAPE_TEST_VLLM=URL` uses a server that runs already, for working on these tests.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VENV = Path(__file__).parents[2] / ".venv-vllm"
PYTHON = VENV / "bin" / "python"
MODEL = VENV / "tiny-qwen3"
CONTEXT = 32768
FLAGS = (
    *("--served-model-name", "policy", "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"),
    *("--max-model-len", str(CONTEXT), "--max-num-seqs", "8", "--no-enable-prefix-caching"),
    *("--max-num-batched-tokens", str(CONTEXT)),  # a seed and a prompt in two chunks end the CPU build's engine
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
}
START_SECONDS = 300


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's URL."""
    if given := os.environ.get("ROLLTAPE_TEST_VLLM"):
        yield given
        return
    with serving(tmp_path_factory.mktemp("vllm") / "log") as url:
        yield url


@contextmanager
def serving(log: Path) -> Iterator[str]:
    """A server on a free port; its last lines are the failure when it does not come up."""
    assert PYTHON.exists(), f"{PYTHON} is missing: make test-real installs it"
    port = _free_port()
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--port", str(port), *FLAGS]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **ENVIRONMENT}, start_new_session=True
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    pytest.fail(f"vLLM did not come up within {START_SECONDS} s:\n{tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
