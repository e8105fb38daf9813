"""`rolltape ls` and `rolltape tree`: what a store holds, and how the calls of one rollout hang together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from rolltape.cli import terminal
from rolltape.rebuild import CallNode, PrefixBreak, Rebuilt, Status, rebuild
from rolltape.store import CaptureStore, RolloutState


def ls(*, dir: terminal.Dir = terminal.DEFAULT_DIR, json: terminal.Json = False) -> None:
    """List the rollouts of a store, the newest last."""
    states = terminal.with_store(dir, lambda store: store.rollouts())
    ordered = sorted(states, key=lambda state: (state.created_at, state.rollout_id))
    if json:
        terminal.print_json([asdict(state) for state in ordered])
    else:
        terminal.out().print(listing(ordered))
        terminal.note(f"{len(ordered)} rollouts in {dir}")


def listing(states: Sequence[RolloutState]) -> Table:
    """One line a rollout."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rollout", no_wrap=True)
    for name in ("calls", "sampled", "reward"):
        table.add_column(name, justify="right")
    for name in ("ending", "state", "updated"):
        table.add_column(name)
    for state in states:
        table.add_row(
            state.rollout_id,
            str(state.n_entries),
            f"{state.generated_tokens:,}",
            terminal.reward(state.reward),
            state.ending or "-",
            state_words(state),
            datetime.fromtimestamp(state.updated_at).strftime("%Y-%m-%d %H:%M:%S"),
        )
    return table


def state_words(state: RolloutState) -> str:
    word = "retired" if state.retired_at else "frozen" if state.frozen else "open"
    if state.n_open_calls:
        word += f", {state.n_open_calls} in flight"
    return f"{word}, [red]incomplete[/]" if state.incomplete else word


def tree(rollout: terminal.Id, *, dir: terminal.Dir = terminal.DEFAULT_DIR, json: terminal.Json = False) -> None:
    """Draw the call tree of a rollout."""

    async def read(store: CaptureStore) -> Rebuilt:
        found = await terminal.find(store, rollout)
        return rebuild(await terminal.snapshot_of(store, found.rollout_id, texts=True))

    rebuilt = terminal.with_store(dir, read)
    if json:
        whole = rebuilt.to_json()
        terminal.print_json({name: whole[name] for name in ("rollout_id", "tree", "prefix_breaks", "terminal")})
    else:
        terminal.out().print(call_tree(rebuilt))


def call_tree(rebuilt: Rebuilt) -> Tree:
    """The calls of a rollout, each below the one that it extends."""
    nodes = {node.model_call_id: node for node in rebuilt.tree}
    breaks = {found.call: found for found in rebuilt.prefix_breaks}
    top = Tree(Text(rebuilt.rollout_id, "bold"), guide_style="dim")
    hung: dict[str, Tree] = {}
    for node in _parents_first(nodes):
        above = hung.get(node.parent or "", top)
        hung[node.model_call_id] = above.add(node_line(node, breaks.get(node.model_call_id), rebuilt))
    return top


def _parents_first(nodes: Mapping[str, CallNode]) -> Sequence[CallNode]:
    """By prompt length: what a call extends is shorter than its prompt."""
    return sorted(nodes.values(), key=lambda node: (node.prompt_tokens, node.model_call_id))


def node_line(node: CallNode, broken: PrefixBreak | None, rebuilt: Rebuilt) -> Text:
    """One call of the tree: id, kind, what became of it, tokens."""
    trained = node.status in (Status.TRAINED, Status.REJECTED)
    line = Text(terminal.seen(f"{node.model_call_id} "), "cyan")
    line.append(f"{node.kind}, ").append(str(node.status), "green" if trained else "yellow")
    line.append(f", {node.prompt_tokens:,} prompt -> {node.sampled_tokens:,} sampled, {node.owned_tokens:,} trained")
    if node.delivery != "delivered":
        line.append(f", {node.delivery}", "yellow")
    if node.model_call_id == rebuilt.terminal.call_id:
        line.append(", terminal", "bold")
    if node.reason and not trained:
        line.append(f" ({node.reason})", "dim")
    if broken is not None:
        where = f"leaves {broken.nearest} at token {broken.first_divergence}" if broken.nearest else "shares no token"
        line.append(f"\nprefix break: {where}, cause {broken.cause}", "red")
    return line
