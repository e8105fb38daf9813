"""Every command: where it lives, what its help says, and an example of each use.

The table is all that start-up reads; the modules are imported when their command is called.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """`where` is an import path; the first line of `help` is the summary in the overview.

    `commands` names those below it; then `where` is an app, which shows the examples itself.
    """

    where: str
    help: str
    examples: tuple[str, ...]
    commands: tuple[str, ...] = ()


def epilogue(lines: tuple[str, ...]) -> str:
    """Examples as the end of a help page."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])


COMMANDS = {
    "demo": Command(
        "rolltape.cli.demo:demo",
        "See it work: a real harness on a real small model, captured, rebuilt and rewarded.\n\n"
        "Runs mini-swe-agent over three tasks, eight attempts each, on a 135M model inside this process. No GPU, no "
        "keys. Then shows the rollouts, one call tree and one training row. Takes about three minutes on two cores.",
        ("rolltape demo", "rolltape demo --json > demo.json"),
    ),
    "serve": Command(
        "rolltape.cli.serve:serve",
        "Serve model endpoints that record every call.\n\n"
        "Point a harness at http://HOST:PORT/rollout/ID and its calls are captured under that id; a request without an "
        "id is served and not captured. Prints one ready line on stderr and runs until it is interrupted. CONFIG is a "
        "YAML file; options given here win over it. The control API describes itself at /control/openapi.json.",
        (
            "rolltape serve --engine llamacpp --dir rolltape-data",
            "rolltape serve rolltape.yaml --port 9000 --auth keys",
        ),
    ),
    "run": Command(
        "rolltape.cli.run:run",
        "Run a harness over tasks: captured, checked, rewarded, delivered.\n\n"
        "A task is one JSON object a line: {id, prompt, [setup], [files], [check]}. Each attempt gets a workspace of "
        "its own; check is a command run in the finished workspace, whose exit status gives the reward. Results are "
        "appended to --out, one line a rollout. Started again with the same --out it goes on where it was.",
        (
            "rolltape run --tasks tasks.jsonl --harness mini-swe-agent --group-size 8 --out results.jsonl",
            "rolltape run --tasks tasks.jsonl --harness mini-swe-agent --gateway http://127.0.0.1:8787",
        ),
    ),
    "ls": Command(
        "rolltape.cli.look:ls",
        "List the rollouts of a store, the newest last.\n\n"
        "A rollout is open (still being written), frozen (handed to a consumer) or retired (its consumer has it; what "
        "is still on disk stays readable). Incomplete means that a call is known to be lost: such a rollout is masked.",
        ("rolltape ls", "rolltape ls --dir rolltape-data --json"),
    ),
    "show": Command(
        "rolltape.cli.show:show",
        "Print a rollout call by call, token by token.\n\n"
        "Each call shows the end of its prompt, the reply, and every sampled token with its log-prob. A token that a "
        "training row owns stands in [brackets] and in colour, one that no loss uses in (parentheses).",
        ("rolltape show write-hello-0", "rolltape show write-h --tokens 0 --json"),
    ),
    "tree": Command(
        "rolltape.cli.look:tree",
        "Draw the call tree of a rollout.\n\n"
        "A call hangs below the one whose whole token sequence is the longest exact prefix of its prompt. Where none "
        "is, the call starts a tree of its own, and the deepest common point is shown as the prefix break.",
        ("rolltape tree write-hello-0", "rolltape tree write-h --json"),
    ),
    "explain": Command(
        "rolltape.cli.explain:explain",
        "Say where and why prompts left the tokens before them.\n\n"
        "For each prefix break: the first token that differs, on both sides, the message and field it lies in, the "
        "cause, what to do about it, and how many sampled tokens it took out of the history. A branch is the same in "
        "text that nobody sampled. --all sums up a store by cause. The texts of tokens are known by themselves for the "
        "engines that Rolltape brings; for others name the model's tokenizer.",
        (
            "rolltape explain write-hello-0",
            "rolltape explain write-h --tokenizer models/qwen3 --json",
            "rolltape explain --all",
        ),
    ),
    "rebuild": Command(
        "rolltape.cli.rebuild:rebuild",
        "Turn a captured rollout into training rows.\n\n"
        "Rows hold only recorded token ids. The loss mask is 1 where a token was sampled and this row owns it; "
        "log-probs are null where it is 0. Works on a store or on a JSONL file of token entries, and freezes nothing. "
        "With --json one rollout a line. --policy and --profile read old captures anew; --diff shows what "
        "that changes.",
        (
            "rolltape rebuild --rollout write-hello-0 --json",
            "rolltape rebuild --entries calls.jsonl --delivery calls --json",
            "rolltape rebuild --diff-policy old.yaml --policy new.yaml",
        ),
    ),
    "export": Command(
        "rolltape.cli.export:export",
        "Write the training rows of a store to a JSONL file, one row a line.\n\n"
        "Masked rollouts, and those whose harness crashed or could not start, are left out and counted. The file "
        "appears whole or not at all. Nothing is frozen or retired.",
        ("rolltape export --out rows.jsonl", "rolltape export --rollout write-hello-0 --delivery calls --out -"),
    ),
    "pool": Command(
        "rolltape.cli.pool:pool",
        "Keep rollouts beyond their run: filter, draw, weigh and ask them.\n\n"
        "A pool is a folder of Parquet files, or a place that pyarrow opens; several writers need no "
        "lock. Filters label, with reasons, and delete nothing; what was drawn says from what. Wants the extra `pool`.",
        (
            "rolltape pool add --dir rolltape-data --results results.jsonl",
            "rolltape pool query 'select task_id, avg(reward) from rollouts group by 1'",
            "rolltape pool sample --n 8 --by group_id --where usable --out rows.jsonl",
        ),
        ("add", "ls", "query", "sample", "filter", "weight", "retain", "stats"),
    ),
    "gc": Command(
        "rolltape.cli.gc:gc",
        "Remove what retention lets go of.\n\n"
        "A rollout that its consumer accepted stays readable for --days; a running gateway removes it then by itself, "
        "and this does the same for a directory without one. What is removed is overwritten. The id of a rollout stays "
        "taken, so that nothing late is stored under it.",
        ("rolltape gc --dry-run", "rolltape gc --days 0 --json"),
    ),
    "verify": Command(
        "rolltape.cli.verify:verify",
        "Derive every digest of a store anew and compare.\n\nExit status 1 when anything is damaged; each finding "
        "names the rollout and the call. With --rollout the rollout is rebuilt, and its certificate printed "
        "or checked.",
        ("rolltape verify", "rolltape verify --rollout write-hello-0 --certificate results.jsonl"),
    ),
}
