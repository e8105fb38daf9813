"""`rolltape serve` as its own process: what it says when it is ready, and how it ends."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("rolltape")


def test_the_ready_line_is_json_for_programs_and_a_line_for_people(tmp_path):
    command = [PROGRAM, "serve", "--engine", "scripted", "--port", "0", "--dir", tmp_path / "store", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{ready['url']}/healthz") as answer:
            health = json.load(answer)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

    assert health == {"status": "ok"}
    assert (ready["engine"], ready["dir"], ready["auth"]) == ("scripted", str(tmp_path / "store"), "open")
    assert f"ready: {ready['url']}" in err
    assert process.returncode == 0
