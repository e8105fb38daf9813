"""`rolltape explain`: each prefix break of a rollout, token by token, with its cause and what to do about it.

Rows never depend on any of this; it reads the recorded texts, which rows do not.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from rolltape.cli import terminal, vocabulary
from rolltape.cli.rebuild import from_file
from rolltape.errors import ConfigError
from rolltape.rebuild import KindPolicy, rebuild
from rolltape.rebuild.breaks import MEANING, Cause, Explanation, Token, TokenText, tree_of
from rolltape.rebuild.breaks import explain as explain_breaks
from rolltape.rebuild.tree import CallTree
from rolltape.record import TokenCaptureSnapshot
from rolltape.store import CaptureStore


def explain(
    rollout: Annotated[
        str | None, Parameter(help="The rollout, or a beginning of its id that no other shares.")
    ] = None,
    *,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    entries: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="A JSONL file of token entries; - is stdin.")
    ] = None,
    all: Annotated[
        bool, Parameter(negative="", help="Every rollout of the store: what was lost to each cause.")
    ] = False,
    tokenizer: Annotated[
        Path | None, Parameter(help="Where the texts of tokens are: a folder with tokenizer.json, or a .gguf file.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Say where and why prompts left the tokens before them."""
    text = None if tokenizer is None else vocabulary.from_path(tokenizer)
    if all and rollout is None and entries is None:
        _print_totals(terminal.with_store(dir, lambda store: _all(store, text)), json)
    elif entries is not None and not all:
        _print(*_explained(from_file(entries, rollout), text), json=json)
    elif rollout is not None and not all:
        _print(*_explained(terminal.with_store(dir, lambda store: _one(store, rollout)), text), json=json)
    else:
        raise ConfigError("nothing to explain", hint="give a rollout, or --all, or --entries FILE.jsonl")


async def _one(store: CaptureStore, rollout: str) -> TokenCaptureSnapshot:
    found = await terminal.find(store, rollout)
    return await terminal.snapshot_of(store, found.rollout_id, texts=True)


async def _all(store: CaptureStore, text: TokenText | None) -> dict[str, tuple[Explanation, ...]]:
    """One rollout at a time: their texts are large."""
    found = {}
    for state in await store.rollouts():
        snapshot = await store.read(state.rollout_id, texts=True)
        if snapshot is not None:
            found[state.rollout_id] = _explained(snapshot, text)[2]
    return found


def _explained(snapshot: TokenCaptureSnapshot, text: TokenText | None) -> tuple[str, CallTree, tuple[Explanation, ...]]:
    kinds = {node.model_call_id: node.kind for node in rebuild(snapshot).tree}
    tree = tree_of(snapshot.entries, kinds, KindPolicy())
    return snapshot.rollout_id, tree, explain_breaks(tree, text or vocabulary.of_entries(snapshot.entries))


def totals(told: Iterable[Explanation]) -> list[dict[str, Any]]:
    """{cause, breaks, branches, tokens_lost} of each cause there is, the costliest first."""
    told = tuple(told)
    lost: Counter[str] = Counter()
    for one in told:
        lost[one.cause] += one.tokens_lost
    kinds = Counter((one.cause, one.broken) for one in told)
    return [
        {"cause": str(cause), "breaks": kinds[cause, True], "branches": kinds[cause, False], "tokens_lost": lost[cause]}
        for cause in sorted({one.cause for one in told}, key=lambda cause: (-lost[cause], cause))
    ]


def _print(rollout_id: str, tree: CallTree, told: Sequence[Explanation], *, json: bool) -> None:
    found = [one.to_json() for one in told]
    if json:
        terminal.print_json({"rollout_id": rollout_id, "breaks": found, "totals": totals(told)})
        return
    console = terminal.out()
    for one in told:
        console.print(lines(one, tree))
    sampled = sum(len(entry.generation_token_ids) for entry in tree.entries.values())
    if told:
        console.print()
        console.print(totals_table(totals(told)))
    breaks = sum(one.broken for one in told)
    terminal.note(
        f"{breaks} breaks and {len(told) - breaks} branches in {len(tree.entries)} calls, {sampled:,} sampled"
    )


def lines(one: Explanation, tree: CallTree) -> Text:
    """A break in five lines: who left whom, both tokens, where, why, what to do."""
    line = Text()
    line.append(f"{'break' if one.broken else 'branch'} ", "bold")
    line.append(terminal.seen(f"{one.call} "), "cyan")
    line.append(f"leaves {terminal.seen(one.nearest)}" if one.nearest else "shares nothing with any call before it")
    line.append(f" at token {one.first_divergence:,} of {len(tree.entries[one.call].prompt_token_ids):,}\n")
    line.append(f"  tokens  {_token(one.was)} became {_token(one.now)}\n")
    line.append(f"  place   {terminal.seen(place(one))}\n", "dim")
    line.append("  cause   ").append(str(one.cause), "red" if one.tokens_lost else "yellow")
    line.append(terminal.seen(f": {MEANING[one.cause]}; {one.evidence}\n"))
    line.append(f"  lost    {one.tokens_lost:,} sampled tokens\n")
    line.append(f"  do      {one.advice}", "dim")
    return line


def place(one: Explanation) -> str:
    """The message and the field in words."""
    if one.message is None:
        return one.field or "not known"
    return f"message {one.message}, {one.role}" + (f", {one.field}" if one.field else "")


def _token(token: Token | None) -> str:
    if token is None:
        return "the end"
    return str(token.id) if token.text is None else f"{token.id} {terminal.seen(repr(token.text))}"


def _print_totals(told: dict[str, tuple[Explanation, ...]], json: bool) -> None:
    every = [one for found in told.values() for one in found]
    if json:
        rollouts = [{"rollout_id": name, "totals": totals(found)} for name, found in sorted(told.items())]
        terminal.print_json({"totals": totals(every), "rollouts": rollouts})
        return
    terminal.out().print(totals_table(totals(every)))
    terminal.note(
        f"{len(told)} rollouts, {sum(bool(found) for found in told.values())} of them with breaks or branches"
    )


def totals_table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line a cause."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cause", no_wrap=True)
    for name in ("breaks", "branches", "tokens lost"):
        table.add_column(name, justify="right")
    table.add_column("meaning")
    for row in rows:
        numbers = (f"{row['breaks']}", f"{row['branches']}", f"{row['tokens_lost']:,}")
        table.add_row(row["cause"], *numbers, MEANING[Cause(row["cause"])])
    return table
