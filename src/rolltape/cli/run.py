"""`rolltape run`: a harness over tasks, on a gateway of its own or on one that is there."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.table import Table

from rolltape import registry
from rolltape.cli import terminal
from rolltape.cli.desk import ClientDesk
from rolltape.cli.policy import PolicyFile, Require, policy_of
from rolltape.cli.progress import watching
from rolltape.client import Connection, connect
from rolltape.config import ServeConfig, read_config
from rolltape.errors import ConfigError
from rolltape.gateway.serve import TOKEN_FILE, running
from rolltape.harness import Profile, find_profile
from rolltape.harness.sandbox import Open, Sandbox, Wanted, sandbox_for
from rolltape.rebuild import read_policy
from rolltape.rollouts import Plan, Summary, read_tasks, run_rollouts
from rolltape.store import TokenSource

TOKEN_VARIABLE = "ROLLTAPE_CONTROL_TOKEN"
POSITIVE = Number(gt=0)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a run takes place: the gateway's control API, the store behind it, and the model it serves first."""

    connection: Connection
    source: TokenSource
    model: str
    context_length: int | None
    """Of that model, in tokens; None = the gateway does not say."""


def run(
    *,
    tasks: Annotated[Path, Parameter(help="JSON lines: {id, prompt, [setup], [files], [check]}.")],
    harness: Annotated[
        str, Parameter(help="A profile's name (claude-code, codex, mini-swe-agent, opencode...), or a path to one.")
    ],
    config: Annotated[
        str | None, Parameter(help="A configuration file for the harness: a path, or one shipped with its profile.")
    ] = None,
    group_size: Annotated[int, Parameter(validator=POSITIVE, help="Rollouts of each task.")] = 1,
    concurrency: Annotated[int, Parameter(validator=POSITIVE, help="Rollouts at a time.")] = 4,
    executor: Annotated[Literal["local"], Parameter(help="Where harnesses run: processes on this machine.")] = "local",
    out: Annotated[Path, Parameter(help="Results, one line a rollout; what a restart goes on from.")] = Path(
        "results.jsonl"
    ),
    time_limit: Annotated[float, Parameter(validator=POSITIVE, help="Seconds that one harness may take.")] = 1800.0,
    max_calls: Annotated[
        int | None, Parameter(validator=POSITIVE, help="Model calls that one rollout may make; no bound if not given.")
    ] = None,
    max_tokens: Annotated[
        int | None, Parameter(validator=POSITIVE, help="Tokens that one rollout may sample; no bound if not given.")
    ] = None,
    policy: PolicyFile = None,
    require: Require = None,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    gateway: Annotated[str | None, Parameter(help="A gateway that is serving; else one is started.")] = None,
    control_token: Annotated[
        str | None, Parameter(env_var=TOKEN_VARIABLE, help="Of that gateway; else DIR/control-token is read.")
    ] = None,
    gateway_config: Annotated[
        Path | None,
        Parameter(help="A YAML file for a gateway that is started here, as for `serve`: sampling_overrides..."),
    ] = None,
    engine: Annotated[
        str | None, Parameter(help="What samples, for a gateway that is started here; llamacpp if nothing says so.")
    ] = None,
    engine_url: Annotated[str | None, Parameter(help="Where that engine is; for scripted a script file.")] = None,
    model: Annotated[str | None, Parameter(help="The model to ask for; if not given, the first one served.")] = None,
    sandbox: Annotated[
        Wanted,
        Parameter(
            help="Keep harnesses from the store, from each other's workspaces and from this process: by bubblewrap, or "
            "as root by a user each. auto: where one works; required: or not at all."
        ),
    ] = "auto",
    json: terminal.Json = False,
) -> None:
    """Run a harness over tasks: captured, checked, rewarded, delivered."""
    profile = profile_named(harness)
    wanted = read_tasks(tasks)
    file = profile.find_config(config) if config else None
    own = read_config(
        gateway_config,
        engine_kind=engine,
        engine_url=engine_url,
        engine_model=model,
        dir=str(dir),
        port=0,
        auth="keys",
    )
    rules = policy_of(policy) if policy is not None else read_policy(own.call_policy)

    secrets = (gateway_config,) if gateway_config else ()

    async def within() -> Summary:
        site_of = there(gateway, control_token, dir, model) if gateway else here(own, profile)
        async with site_of as site:
            chosen = await confined(sandbox, profile, dir, (Path(own.dir), out, tasks, *secrets))
            plan = Plan(
                tasks=wanted,
                profile=profile,
                model=site.model,
                out=out,
                directory=dir,
                group_size=group_size,
                concurrency=concurrency,
                config=file,
                context_length=site.context_length,
                sandbox=chosen,
                time_limit=time_limit,
                budget={name: bound for name, bound in (("calls", max_calls), ("tokens", max_tokens)) if bound},
                policy=rules,
                require=require,
            )
            return await run_plan(plan, site)

    summary = interruptible(within)
    if json:
        terminal.print_json(summary.to_json())
    else:
        terminal.out().print(scores(summary))
    terminal.note(f"{totals(summary)}; one result a line in {out}")
    if summary.rows and summary.excluded == len(summary.rows):
        reason = summary.rows[0].get("excluded_reason")
        terminal.fail(f"no rollout can be used; the first: {reason}", f"its output is under {dir / 'workspaces'}")


async def confined(wanted: Wanted, profile: Profile, directory: Path, hidden: Sequence[Path]) -> Sandbox:
    """What harnesses run in, said aloud."""
    program = profile.find_executable(os.environ.get("PATH", os.defpath))
    chosen = await sandbox_for(wanted, directory, hidden, (program,))
    if isinstance(chosen, Open) and chosen.why:
        terminal.note(f"sandbox: none, harnesses can read the store: {chosen.why}")
    elif wanted != "off":
        terminal.note(f"sandbox: {chosen.name}")
    return chosen


def profile_named(name: str) -> Profile:
    """A profile that some installed package ships, or the one in a file. Its program must be there too."""
    profile = find_profile(name, registry.profiles())
    profile.find_executable(os.environ.get("PATH", os.defpath))
    return profile


@asynccontextmanager
async def here(config: ServeConfig, profile: Profile) -> AsyncIterator[Site]:
    """A gateway in this process, which knows `profile`."""
    terminal.note(f"starting the engine {config.engine.kind}")
    async with (
        running(config, profiles=(profile,)) as gateway,
        connect(gateway.url, gateway.control_token) as connection,
    ):
        served = (await gateway.engine.models())[0]
        yield Site(connection, gateway.store, served.name, served.context_length)


@asynccontextmanager
async def there(url: str, token: str | None, directory: Path, model: str | None) -> AsyncIterator[Site]:
    """A gateway elsewhere. Its store is read over its control API."""
    file = directory / TOKEN_FILE
    if token is None and not file.is_file():
        hint = f"give --control-token or {TOKEN_VARIABLE}, or its --dir"
        raise ConfigError(f"the gateway at {url} wants a control token", hint=hint)
    async with connect(url, token or file.read_text().strip()) as connection:
        served = await connection.models()
        name = model or next(iter(served))
        yield Site(connection, connection.source(), name, served.get(name))


async def run_plan(plan: Plan, site: Site) -> Summary:
    """The run, shown while it goes."""
    with watching() as watch:
        return await run_rollouts(plan, ClientDesk(site.connection), site.source, watch)


def interruptible(work: Callable[[], Coroutine[Any, Any, Summary]]) -> Summary:
    """`work` to its end. SIGTERM is taken as Ctrl-C is: harnesses are ended, and the run can go on later."""

    async def within() -> Summary:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        return asyncio.run(within())
    except (KeyboardInterrupt, asyncio.CancelledError):
        terminal.note("interrupted: the same command goes on from here")
        sys.exit(130)


def scores(summary: Summary) -> Table:
    """One line a task."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True)
    for name in ("rollouts", "rewarded", "passed", "mean reward"):
        table.add_column(name, justify="right")
    for score in sorted(summary.tasks, key=lambda score: score.task_id):
        mean = "-" if score.mean_reward is None else f"{score.mean_reward:.2f}"
        table.add_row(score.task_id, *map(str, (score.rollouts, score.rewarded, score.passed)), mean)
    return table


def totals(summary: Summary) -> str:
    """The run in one line."""
    endings = ", ".join(f"{n} {ending}".replace("_", " ") for ending, n in sorted(summary.endings.items()))
    words = [f"{len(summary.rows)} rollouts ({endings})", f"{summary.calls} calls"]
    words.append(f"{summary.generated_tokens_captured:,} tokens sampled")
    words += [f"{n} {what}" for n, what in ((summary.masked, "masked"), (summary.excluded, "left out")) if n]
    return ", ".join(words)
