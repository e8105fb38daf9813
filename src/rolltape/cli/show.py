"""`rolltape show`: one rollout, call by call, token by token.

What is trained is decided by the rebuilt rows, never here: a token stands in brackets where a row's loss mask is 1.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rolltape.cli import terminal
from rolltape.rebuild import rebuild
from rolltape.record import Outcome, Row, TokenCaptureSnapshot, TokenEntry
from rolltape.store import CaptureStore

PROMPT_LINES = 8
"""How much of a prompt's end is shown."""

Mask: TypeAlias = NDArray[np.bool_]


def show(
    rollout: terminal.Id,
    *,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    tokens: Annotated[int, Parameter(help="Sampled tokens shown of each call; 0 = all.")] = 40,
    json: terminal.Json = False,
) -> None:
    """Print a rollout call by call, token by token."""

    async def read(store: CaptureStore) -> TokenCaptureSnapshot:
        found = await terminal.find(store, rollout)
        return await terminal.snapshot_of(store, found.rollout_id, texts=True)

    snapshot = terminal.with_store(dir, read)
    calls = in_order(snapshot.entries)
    rebuilt = rebuild(snapshot, delivery="forest")
    trained = trained_tokens(calls, rebuilt.rows)
    if json:
        shown = [entry.to_json() | _added(entry, trained[entry.model_call_id]) for entry in calls]
        head = {"rollout_id": snapshot.rollout_id, "outcome": snapshot.outcome, "incomplete": snapshot.incomplete}
        masked = {"mask_sample": rebuilt.mask_sample, "mask_reasons": rebuilt.mask_reasons}
        terminal.print_json(head | masked | {"calls": shown})
        return
    console = terminal.out()
    console.print(headline(snapshot, trained, rebuilt.mask_reasons))
    for number, entry in enumerate(calls):
        _print_call(console, number, entry, trained[entry.model_call_id], tokens or entry.length)


def in_order(entries: Iterable[TokenEntry]) -> list[TokenEntry]:
    """Calls as a reader wants them: by start where it is known, else by end."""
    return sorted(entries, key=lambda e: (e.started_at or e.created_at, e.created_at, e.model_call_id))


def trained_tokens(entries: Sequence[TokenEntry], rows: Iterable[Row]) -> dict[str, Mask]:
    """For each call id, which of its sampled tokens some row's loss holds."""
    trained = {entry.model_call_id: np.zeros(len(entry.generation_token_ids), np.bool_) for entry in entries}
    for row in rows:
        for span in row.spans:
            if span.owned:
                trained[span.model_call_id] |= row.loss_mask[span.start : span.end].astype(np.bool_)
    return trained


def headline(snapshot: TokenCaptureSnapshot, trained: dict[str, Mask], mask_reasons: Sequence[str]) -> Text:
    """The rollout in one line, and one for each reason why a trainer skips it."""
    sampled = sum(len(mask) for mask in trained.values())
    line = Text(snapshot.rollout_id, "bold")
    line.append(f"  {len(snapshot.entries)} calls, {sampled:,} tokens sampled, ", "not bold")
    line.append(f"{sum(int(mask.sum()) for mask in trained.values()):,} trained", "not bold green")
    reward, ending = snapshot.outcome.get("reward"), snapshot.outcome.get("ending")
    line.append(f", reward {'none' if reward is None else f'{reward:g}'}, {ending or 'no outcome'}", "not bold")
    for reason in mask_reasons:
        line.append(f"\n  masked, a trainer skips this rollout: {reason}", "red")
    return line


def _print_call(console: Console, number: int, entry: TokenEntry, trained: Mask, limit: int) -> None:
    console.print()
    console.print(call_line(number, entry))
    for problem in (*entry.faults, *([entry.error] if entry.error else [])):
        console.print(Text(terminal.seen(f"  ! {problem}"), "red"))
    for role, text in prompt_tail(entry):
        console.print(_block(role, text, "dim"))
    for kind, text in reply_parts(entry):
        console.print(_block(kind, text, ""))
    if len(entry.generation_token_ids):
        console.print(Padding(token_line(entry, trained, limit), (0, 0, 0, 4), expand=False))


def call_line(number: int, entry: TokenEntry) -> Text:
    """The call in one line: what it was, how it ended, how long it was and took."""
    words = [entry.kind or "agent", str(entry.outcome), str(entry.delivery), entry.finish_reason or "no finish reason"]
    prompt, sampled = len(entry.prompt_token_ids), len(entry.generation_token_ids)
    words.append(f"{prompt:,} prompt -> {sampled:,} sampled")
    if entry.started_at and entry.created_at:
        words.append(f"{entry.created_at - entry.started_at:.2f} s")
    words += [f"{name} {value}" for name, value in sorted(entry.sampling_applied.items()) if name == "temperature"]
    if entry.policy_version is not None:
        words.append(f"policy {entry.policy_version}")
    line = Text(f"call {number} ", "bold")
    line.append(terminal.seen(f"{entry.model_call_id} "), "cyan")
    line.append(
        terminal.seen(", ".join(words)), "not bold" if entry.outcome is Outcome.COMPLETED else "not bold yellow"
    )
    return line


def prompt_tail(entry: TokenEntry) -> list[tuple[str, str]]:
    """(role, text) of what the prompt's end added: the messages after the last assistant turn."""
    messages = request(entry).get("messages", [])
    after = next((i for i in range(len(messages), 0, -1) if messages[i - 1].get("role") == "assistant"), 0)
    return [(message["role"], _content(message.get("content"))) for message in messages[after:]]


def reply_parts(entry: TokenEntry) -> list[tuple[str, str]]:
    """(what, text) of each item of the reply."""
    parts = []
    for item in entry.output_items:
        if item.get("type") == "function_call":
            parts.append(("calls", f"{item.get('name')}({item.get('arguments')})"))
        else:
            pieces = item.get("content") or item.get("summary") or []
            parts.append(("thinks" if item.get("type") == "reasoning" else "replies", _content(pieces)))
    return parts


def request(entry: TokenEntry) -> dict[str, Any]:
    """The canonical request; {} where texts are off."""
    decoded: dict[str, Any] = msgspec.json.decode(entry.request_text) if entry.request_text else {}
    return decoded


def _content(content: Any) -> str:
    if isinstance(content, list | tuple):
        return "".join(part.get("text", f"<{part.get('type')}>") for part in content)
    return content or ""


def _block(title: str, text: str, style: str) -> Padding:
    lines = [terminal.seen(line) for line in text.rstrip().splitlines()] or [""]
    cut = lines[-PROMPT_LINES:]
    if len(cut) < len(lines):
        cut.insert(0, f"... {len(lines) - len(cut) + 1} lines more")
    block = Text(style=style)
    for number, line in enumerate(cut):
        block.append(f"{title if number == 0 else '':>9} | ", "dim").append(
            line if number == len(cut) - 1 else f"{line}\n"
        )
    return Padding(block, (0, 0, 0, 2), expand=False)


def token_line(entry: TokenEntry, trained: Mask, limit: int) -> Text:
    """Each sampled token as `[id:log-prob]` where a loss holds it, `(id:log-prob)` where none does."""
    ids, log_probs = entry.generation_token_ids, entry.generation_log_probs
    line = Text()
    for i in range(min(limit, len(ids))):
        value = float(log_probs[i]) if i < len(log_probs) else float("nan")
        inner = f"{ids[i]}:{value:.2f}" if np.isfinite(value) else f"{ids[i]}:?"
        line.append(*((f"[{inner}]", _style(value)) if trained[i] else (f"({inner})", "dim"))).append(" ")
    if limit < len(ids):
        line.append(f"... {len(ids) - limit} more (--tokens 0 shows all)", "dim")
    return line


def _style(log_prob: float) -> str:
    """Green where the model was sure, red where it was surprised; the number beside it says the same."""
    return "green" if log_prob > -0.25 else "yellow" if log_prob > -1.5 else "red"


def _added(entry: TokenEntry, trained: Mask) -> dict[str, Any]:
    return {"trained": trained.astype(int).tolist(), "request": request(entry) or None}
