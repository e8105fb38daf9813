"""A hostile harness in each kind of sandbox: what it reaches is its own folder and the network, and nothing else.

Both kinds are tried for real. One that the machine does not allow must say so, and then nothing is run in it.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollouts.folder_desk import script_profile
from rolltape.errors import ConfigError
from rolltape.harness import Attempt, Profile
from rolltape.harness.launcher import remove_tree
from rolltape.harness.sandbox import Bubblewrap, Sandbox, sandbox_for
from rolltape.rollouts.attempt import CommandLimits, Tried, try_task
from rolltape.rollouts.tasks import Task

pytestmark = pytest.mark.real


@pytest.fixture
def place() -> Iterator[Path]:
    """Like a run's directory, where other users may pass: pytest's own folders are closed to them."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "workspaces").mkdir(mode=0o700)
    (folder / "rolltape.db").touch(mode=0o600)
    (folder / "rolltape.db").write_text("SECRET")
    yield folder
    remove_tree(folder)


async def tried(place: Path, sandbox: Sandbox, script: str | Profile, *, name: str = "t-0", **task: object) -> Tried:
    profile = script_profile(script) if isinstance(script, str) else script
    directory = place / "workspaces" / name
    attempt = Attempt(
        rollout_id=name,
        prompt="do it",
        model="m",
        base_urls={"openai": "http://127.0.0.1:1/v1"},
        api_key="key",
        directory=directory,
        time_limit=20.0,
        grace=0.5,
        sandbox=sandbox,
    )
    wanted = Task(id="t", prompt="do it", **task)  # type: ignore[arg-type]
    return await try_task(wanted, profile, attempt, CommandLimits())


@pytest.fixture(params=["strongest", "uid"])
async def sandbox(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """The strongest that works here, and a user of its own where that is another one. Fails where none works."""
    if request.param == "uid" and os.getuid() == 0:
        without_bubblewrap(monkeypatch)
    return await sandbox_for("required", place, (), ("/bin/sh",))


def without_bubblewrap(monkeypatch: pytest.MonkeyPatch, instead: str | None = None) -> None:
    """`instead` is found for it."""
    found = shutil.which
    here = SimpleNamespace(**{**vars(shutil), "which": lambda name: instead if name == "bwrap" else found(name)})
    monkeypatch.setattr("rolltape.harness.sandbox.shutil", here)


# What is written may land in a place of the sandbox's own: then it must not be seen outside, where the test looks.
DEEDS = {
    "read the store": "cat {place}/rolltape.db",
    "list the store": "ls {place} | grep rolltape",
    "read another workspace": "cat {place}/workspaces/other-0/workspace/note",
    "list the workspaces": "ls {place}/workspaces | grep other",
    "write into the store": "echo x > {place}/rolltape.db; false",
    "write beside its folder": "echo x > {place}/workspaces/planted; false",
    "read our environment": "cat /proc/{pid}/environ",
    "uncover the store": "umount -l {place}; umount -l {place}/workspaces; cat {place}/rolltape.db",
    "open the root": "mount -o remount,bind,rw /; touch {place}/workspaces/planted; false",
    "uncover it as root of its own": "unshare -Urm sh -c 'umount -l {place}; cat {place}/rolltape.db'",
    "signal us": "kill -0 {pid}",
    "end us": "kill -TERM {pid}",
    "become somebody": "chown 0:0 . && chmod 4777 . && cat {place}/rolltape.db",
}


@pytest.mark.parametrize("deed", DEEDS)
async def test_what_is_not_its_own_is_out_of_reach(sandbox: Sandbox, place: Path, deed: str) -> None:
    other = place / "workspaces" / "other-0" / "workspace"
    other.mkdir(mode=0o700, parents=True)
    (other / "note").write_text("SECRET")
    command = DEEDS[deed].format(place=place, pid=os.getpid())

    done = await tried(place, sandbox, f"{{ {command}; }} > out 2>&1 && touch done; exit 0", check="test ! -e done")

    said = place / "workspaces" / "t-0" / "workspace" / "out"
    assert said.exists(), done
    assert "SECRET" not in said.read_text()
    assert done.reward == 1.0, said.read_text()
    assert not (place / "workspaces" / "planted").exists()
    assert (place / "rolltape.db").read_text() == "SECRET"


async def test_an_honest_harness_works_as_ever(sandbox: Sandbox, place: Path) -> None:
    script = 'cat given > made; echo "$1" >> made; mktemp > /dev/null; touch /tmp/t ~/h; test -n "$OPENAI_API_KEY"'
    done = await tried(
        place,
        sandbox,
        script,
        files={"given": "one\n"},
        setup="echo two >> given",
        check='test "$(cat made)" = "$(printf "one\\ntwo\\ndo it")"',
    )
    assert (done.ended.ending, done.reward) == ("finished", 1.0), done
    assert (place / "workspaces" / "t-0" / "workspace" / "made").stat().st_uid == os.getuid()


async def test_what_a_harness_leaves_running_is_ended(sandbox: Sandbox, place: Path) -> None:
    script = "(setsid sh -c 'sleep 3; touch alive' &) ; (env -i setsid sleep 30 &) ; exit 0"
    done = await tried(place, sandbox, script, check="sleep 4; test ! -e alive")
    assert done.reward == 1.0


async def test_a_leftover_cannot_end_the_check(sandbox: Sandbox, place: Path) -> None:
    script = "env -i setsid sh -c 'while :; do sleep 0.05; kill -9 -1; done' > /dev/null 2>&1 & exit 0"
    done = await tried(place, sandbox, script, check="sleep 1; exit 0")
    assert (done.ended.ending, done.reward) == ("finished", 1.0)


async def test_a_deep_tree_is_no_trouble(sandbox: Sandbox, place: Path) -> None:
    script = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd -P d || break; i=$((i+1)); done; exit 0"
    done = await tried(place, sandbox, script, check="test -d d/d/d")
    assert done.reward == 1.0


async def test_a_prompt_may_look_like_a_path(sandbox: Sandbox, place: Path) -> None:
    profile = script_profile("", command=("{executable}", "-c", "exit 0", "/" + "x" * 300))
    assert (await tried(place, sandbox, profile, check="true")).reward == 1.0


async def test_our_home_and_our_sockets_are_not_its(sandbox: Sandbox, place: Path, monkeypatch) -> None:
    if not isinstance(sandbox, Bubblewrap):
        assert os.getuid() == 0, "another user sees of a home what everybody does"
    home = place.parent / f"{place.name}-home"
    home.mkdir(mode=0o700)
    (home / "id_ed25519").write_text("SECRET")
    (home / "id_ed25519").chmod(0o600)
    monkeypatch.setenv("HOME", str(home))
    try:
        done = await tried(place, sandbox, f"cat {home}/id_ed25519 > out 2>&1; exit 0", check="! grep SECRET out")
        assert done.reward == 1.0
    finally:
        shutil.rmtree(home)


async def test_the_check_cannot_be_used_to_reach_out(sandbox: Sandbox, place: Path) -> None:
    """It runs what the agent left."""
    script = f"printf '#!/bin/sh\\ncat {place}/rolltape.db > stolen\\n' > run.sh; chmod +x run.sh"
    done = await tried(place, sandbox, script, check="./run.sh; test ! -s stolen")
    assert done.reward == 1.0


async def test_two_attempts_at_a_time_are_strangers(sandbox: Sandbox, place: Path) -> None:
    other = place / "workspaces" / "t-1"
    other.mkdir(mode=0o700)
    (other / "note").write_text("SECRET")
    sandbox.take(other)
    done = await tried(place, sandbox, f"cat {other}/note > out 2>&1; true", check="! grep SECRET out")
    assert done.reward == 1.0
    sandbox.give_back(other)


async def test_required_and_impossible_is_refused_with_the_reasons(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_bubblewrap(monkeypatch)
    monkeypatch.setattr("rolltape.harness.sandbox.os", SimpleNamespace(**{**vars(os), "getuid": lambda: 1000}))
    with pytest.raises(ConfigError, match=r"not installed; a user for each attempt takes root"):
        await sandbox_for("required", place, (), ())
    assert (await sandbox_for("auto", place, (), ())).name == "none"
    assert (await sandbox_for("off", place, (), ())).name == "none"


async def test_a_bubblewrap_that_is_forbidden_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = place / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    without_bubblewrap(monkeypatch, str(fake))
    monkeypatch.setattr("rolltape.harness.sandbox.os", SimpleNamespace(**{**vars(os), "getuid": lambda: 1000}))
    with pytest.raises(ConfigError, match="No permissions to create a new namespace"):
        await sandbox_for("required", place, (), ())


async def test_a_program_that_cannot_be_run_within_is_named(sandbox: Sandbox, place: Path) -> None:
    with pytest.raises(ConfigError, match="not so: test -x /nowhere/harness"):
        await sandbox_for("required", place, (), ("/nowhere/harness",))


def test_this_python_is_reachable_in_a_sandbox_of_its_own_tmp() -> None:
    inside = Path(sys.prefix).is_relative_to("/tmp")
    assert (sys.prefix in [*Bubblewrap("bwrap")._view(Path("/work"), ())]) == inside


async def test_a_script_of_a_harness_is_found_though_tmp_is_its_own(place: Path, tmp_path: Path) -> None:
    sandbox = await sandbox_for("auto", place, (tmp_path / "tasks",), ())
    if not isinstance(sandbox, Bubblewrap):
        return
    (tmp_path / "tasks").write_text("SECRET")
    (tmp_path / "harness.sh").write_text(f"cp {tmp_path}/tasks . ; touch ran {tmp_path}/planted; exit 0")
    profile = script_profile("", command=("{executable}", str(tmp_path / "harness.sh")))
    done = await tried(place, sandbox, profile, check="test -e ran && test ! -s tasks")
    assert done.reward == 1.0
    assert not (tmp_path / "planted").exists()
