"""Edits of recorded conversations, some for each cause, as harnesses, templates and tokenizers make them.

An edit takes a request that honestly continues the call that sampled its message `at`, and gives the request as it
would have come; None where it does not apply (no tool call, no system prompt). What cannot be said in messages - a
token, a template - is an edit of the rendered prompt or of the call before, in `Case`.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import msgspec

from rolltape.chat import ChatRequest, Message
from rolltape.rebuild.breaks import Cause
from rolltape.record import TokenEntry

from . import kit

Edit = Callable[[random.Random, ChatRequest, int], "ChatRequest | Case | None"]
replace = msgspec.structs.replace


@dataclass
class Case:
    """`before` are the calls that were recorded, `last` the one that leaves them."""

    before: list[TokenEntry]
    last: TokenEntry


def with_(request: ChatRequest, at: int, *messages: Message, drop: int = 1) -> ChatRequest:
    """`request` with `drop` messages at `at` given up for `messages`."""
    kept = request.messages
    return replace(request, messages=(*kept[:at], *messages, *kept[at + drop :]))


def call_of(request: ChatRequest, at: int) -> Any:
    """The first tool call of a turn whose arguments are an object; None if there is none."""
    for call in request.messages[at].tool_calls:
        try:
            if isinstance(json.loads(call.arguments), dict):
                return call
        except ValueError:
            continue
    return None


def with_arguments(request: ChatRequest, at: int, change: Callable[[Any], str]) -> ChatRequest | None:
    call = call_of(request, at)
    if call is None or (spelled := change(json.loads(call.arguments))) == call.arguments:
        return None
    turn = request.messages[at]
    calls = tuple(replace(one, arguments=spelled) if one is call else one for one in turn.tool_calls)
    return with_(request, at, replace(turn, tool_calls=calls))


def thinking(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    words = ["look", "at", "the", "file", "then", "run", "what", "is", "there", "and", "see", "if", "it", "holds"]
    return with_(request, at, replace(request.messages[at], reasoning=" ".join(rng.sample(words, 12))))


# Reasoning


def template_strips(rng: random.Random, request: ChatRequest, at: int) -> Case:
    """Another question of the user's: Qwen3's template takes away the thinking before it."""
    honest = thinking(rng, request, at)
    asked = replace(honest, messages=(*honest.messages, Message("user", "Now do the same for the other folder.")))
    return Case(kit.history(honest, at, whole=rng.random() < 0.5), kit.entry("c999", asked, None))


def harness_strips(rng: random.Random, request: ChatRequest, at: int) -> Case:
    honest = thinking(rng, request, at)
    return Case(kit.history(honest, at), kit.entry("c999", request_without_thinking(honest, at), None))


def request_without_thinking(request: ChatRequest, at: int) -> ChatRequest:
    return with_(request, at, replace(request.messages[at], reasoning=None))


# Tool arguments


def compact(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    return with_arguments(request, at, lambda value: json.dumps(value, separators=(",", ":")))


def spaced(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    return with_arguments(request, at, lambda value: json.dumps(value, indent=1))


def reordered(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    return with_arguments(request, at, lambda value: json.dumps(dict(reversed(value.items()))))


def malformed(rng: random.Random, request: ChatRequest, at: int) -> Case | None:
    """What was sampled is cut JSON; the harness sends what it made of it."""
    call = call_of(request, at)
    if call is None:
        return None
    turn = request.messages[at]
    cut = replace(turn, tool_calls=(replace(call, arguments=call.arguments[:-3]),))
    made = replace(turn, tool_calls=(replace(call, arguments="{}"),))
    asked = with_(request, at, made)
    return Case(kit.history(with_(request, at, cut), at), kit.entry("c999", asked, None))


def template_respells(rng: random.Random, request: ChatRequest, at: int) -> Case | None:
    """The engine gives its template objects, and the model had sampled other spaces."""
    call = call_of(request, at)
    if call is None or any(call_of(request, i) is None for i in kit.replies(request) if request.messages[i].tool_calls):
        return None
    honest = with_arguments(request, at, lambda value: json.dumps(value, separators=(",", ":")))
    if honest is None:
        return None
    (before,) = kit.history(honest, at, whole=False)
    return Case([before], kit.entry("c999", honest, None, prompt=kit.render(honest, parse_arguments=True)))


def gains_default(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    name = rng.choice(["replace_all", "run_in_background", "timeout", "description"])
    value = {"replace_all": False, "run_in_background": False, "timeout": 120000, "description": ""}[name]
    call = call_of(request, at)
    if call is None or name in call.arguments or len(json.loads(call.arguments)) == 0:
        return None
    gained = f"{call.arguments[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"
    return with_arguments(request, at, lambda _: gained)


def gains_default_first(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    call = call_of(request, at)
    if call is None or len(json.loads(call.arguments)) == 0:
        return None
    return with_arguments(request, at, lambda _: f'{{"dry_run": false, {call.arguments[1:]}')


# Turns


def drops_exchange(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    stop = next((i for i in range(at + 1, len(request.messages)) if request.messages[i].role == "assistant"), None)
    return None if stop is None else with_(request, at, drop=stop - at)


def drops_reply(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    """Only an error is added, as where a reply held no tool call."""
    return replace(request, messages=(*request.messages[:at], Message("user", "No tool call found in the reply.")))


def goes_back(rng: random.Random, request: ChatRequest, at: int) -> Case | None:
    """The history ends before the turn; what was asked last stands alone again."""
    earlier = [index for index in kit.replies(request) if index < at]
    if not earlier:
        return None
    return Case(kit.history(request, at, whole=False), kit.entry("c999", kit.upto(request, earlier[-1]), None))


def merges_assistant(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    """A cut reply and its continuation become one turn."""
    turn = request.messages[at]
    return with_(request, at, replace(turn, content=f"{kit.flat(turn)}\n\nGoing on where I was cut off.".strip()))


def merges_next(rng: random.Random, request: ChatRequest, at: int) -> Case | None:
    """Two turns in a row become one, both of them recorded."""
    turn = request.messages[at]
    more = Message("assistant", "I will also look at the tests.")
    if not kit.flat(turn).strip() or turn.tool_calls:
        return None
    two = with_(request, at, turn, more)
    asked = with_(request, at, replace(turn, content=f"{kit.flat(turn)}{more.content}"))
    return Case([kit.entry("c5", kit.upto(two, at + 2), None)], kit.entry("c999", asked, None))


def merges_user(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    """The next user message is put behind the last one, and the reply between is gone."""
    turn = request.messages[at - 1]
    if turn.role not in ("user", "tool") or not kit.flat(turn).strip():
        return None
    joined = replace(turn, content=f"{kit.flat(turn)}\n\nPlease stop and answer me first.")
    return replace(request, messages=(*request.messages[: at - 1], joined))


def inserts_attempt(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    aborted = Message("assistant", "Let me try th"), Message("user", "Tool execution aborted")
    return with_(request, at, *aborted, request.messages[at])


# White space


def pads_reply(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    turn = request.messages[at]
    if not kit.flat(turn).strip() or " " not in kit.flat(turn):
        return None
    spaced_out = rng.choice([kit.flat(turn) + " ", kit.flat(turn).replace(" ", "  ", 1), f" {kit.flat(turn)}"])
    return with_(request, at, replace(turn, content=spaced_out))


def pads_result(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    turn = request.messages[at - 1]
    if turn.role in ("assistant", "system") or not kit.flat(turn).strip():
        return None
    return with_(request, at - 1, replace(turn, content=f"{kit.flat(turn)}\n \n"))


def template_trims(rng: random.Random, request: ChatRequest, at: int) -> Case | None:
    """What was sampled ends in spaces that the parser does not give back."""
    turn = request.messages[at]
    if turn.tool_calls or turn.reasoning:
        return None
    (before,) = kit.history(with_(request, at, replace(turn, content=f"{kit.flat(turn)}  \n")), at, whole=False)
    honest = kit.entry("c0", kit.upto(request, at), turn)
    return Case([before.with_(output_items=honest.output_items)], kit.entry("c999", request, None))


# The head


def system_at(request: ChatRequest) -> int | None:
    return next((i for i, m in enumerate(request.messages) if m.role in ("system", "developer")), None)


def new_version(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    if request.messages[0].role not in ("system", "developer"):
        return None
    head = kit.flat(request.messages[0])
    changed = rng.choice(
        [f"Today is 2026-12-0{rng.randint(1, 9)}.\n{head}", f"{head}\nSession {rng.random()}", head[7:]]
    )
    return with_(request, 0, replace(request.messages[0], content=changed))


def adds_tool(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    if not request.tools:
        return None
    extra = {"type": "function", "function": {"name": "fetch", "description": "Fetch a page", "parameters": {}}}
    where = rng.randint(0, len(request.tools))
    return replace(request, tools=(*request.tools[:where], extra, *request.tools[where:]))


def removes_tool(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    return replace(request, tools=request.tools[1:]) if len(request.tools) > 1 else None


def rewords_tool(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    if not request.tools:
        return None
    spelled = msgspec.json.encode(request.tools[0]).decode()
    return replace(request, tools=(json.loads(spelled.replace("e", "E", 1)), *request.tools[1:]))


# What a harness adds


def first_user(request: ChatRequest) -> int:
    return next(i for i, m in enumerate(request.messages) if m.role == "user")


def reminder_in_message(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    where = first_user(request)
    turn = request.messages[where]
    note = f"<system-reminder>\nThe file list changed {rng.randint(2, 99)} times.\n</system-reminder>"
    return with_(request, where, replace(turn, content=f"{kit.flat(turn)}\n{note}"))


def reminder_message(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    note = Message(rng.choice(["user", "system"]), "<system-reminder>Plan mode is on.</system-reminder>")
    return with_(request, at, note, request.messages[at])


def drops_date(rng: random.Random, request: ChatRequest, at: int) -> Case:
    where = first_user(request)
    turn = request.messages[where]
    dated = with_(request, where, replace(turn, content=f"Today is Monday, 30 November.\n{kit.flat(turn)}"))
    return Case(kit.history(dated, at), kit.entry("c999", request, None))


def compacts(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    """A new beginning: the head, a summary, the last turns."""
    head = [m for m in request.messages[:2] if m.role in ("system", "developer")]
    if at - first_user(request) < 3:
        return None
    told = Message("user", "This session is continued from a previous conversation. Summary: the files were written.")
    return replace(request, messages=(*head, told, *request.messages[at - 1 :]))


def compacts_by_call(rng: random.Random, request: ChatRequest, at: int) -> Case:
    """A call of its own wrote the summary; the next request quotes it."""
    ask = Message("user", "Respond with text only: describe all that was done so far in detail.")
    asked = replace(request, messages=(*request.messages[: at + 1], ask))
    told = Message("assistant", "Work done: three files were written, one test fails, the cause is not yet known.")
    fresh = (*request.messages[: first_user(request)], Message("user", f"Work so far:\n{told.content}"))
    before = [*kit.history(request, at), kit.entry("c500", asked, told, kind="compaction")]
    return Case(before, kit.entry("c999", replace(request, messages=fresh), None))


def cuts_middle(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    where = first_user(request)
    if at - where < 4:
        return None
    gone = Message("user", "[earlier messages were removed to save room]")
    return with_(request, where + 1, gone, drop=at - where - 2)


def clears_result(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest | None:
    where = next((i for i in range(at) if request.messages[i].role == "tool"), None)
    if where is None or len(kit.flat(request.messages[where])) < 24:
        return None
    return with_(request, where, replace(request.messages[where], content="[result cleared]"))


# Tokens and images


def other_cut(rng: random.Random, request: ChatRequest, at: int) -> Case | None:
    """The model sampled the letters of a word one by one."""
    (honest,) = kit.history(request, at, whole=False)
    ids = honest.generation_token_ids.tolist()
    long = [i for i, token in enumerate(ids) if token >= 9 and len(kit.text()(token)) > 2]
    if not long:
        return None
    where = rng.choice(long)
    alphabet = kit.tokenizer().get_vocab()
    piece = kit.tokenizer().id_to_token(ids[where])
    cut = [*ids[:where], *(alphabet[letter] for letter in piece), *ids[where + 1 :]]
    before = honest.with_(generation_token_ids=cut, generation_log_probs=[-0.5] * len(cut))
    return Case([before], kit.entry("c999", request, None))


def pictured(request: ChatRequest, at: int, pads: int, data: str) -> ChatRequest:
    turn = request.messages[at]
    shown = ({"type": "text", "text": kit.flat(turn)}, {"type": "image_url", "image_url": {"url": data}, "pads": pads})
    return with_(request, at, replace(turn, content=shown))


def resized_image(rng: random.Random, request: ChatRequest, at: int) -> Case:
    where = first_user(request)
    honest, asked = pictured(request, where, 64, "data:a"), pictured(request, where, rng.choice([16, 100]), "data:b")
    return Case(kit.history(honest, at), kit.entry("c999", asked, None))


def dropped_image(rng: random.Random, request: ChatRequest, at: int) -> Case:
    where = first_user(request)
    return Case(kit.history(pictured(request, where, 64, "data:a"), at), kit.entry("c999", request, None))


def same_image_other_size(rng: random.Random, request: ChatRequest, at: int) -> Case:
    """The same bytes, which the engine's processor cut into fewer patches."""
    where = first_user(request)
    honest = pictured(request, where, 64, "data:a")
    prompt = kit.render(pictured(request, where, 40, "data:a"))
    return Case(kit.history(honest, at), kit.entry("c999", honest, None, prompt=prompt))


def flips_token(rng: random.Random, request: ChatRequest, at: int) -> Case:
    before = kit.history(request, at)
    prompt = kit.render(request)
    where = rng.randrange(3, before[-1].length)
    prompt[where] = (prompt[where] + 1 + rng.randrange(2000)) % 2048
    return Case(before, kit.entry("c999", request, None, prompt=prompt))


def subagent(rng: random.Random, request: ChatRequest, at: int) -> Case:
    told = (Message("system", "You search files and report."), Message("user", "Find every use of the flag."))
    return Case(
        kit.history(request, at), kit.entry("c999", replace(request, messages=told, tools=()), None, kind="subagent")
    )


def second_task(rng: random.Random, request: ChatRequest, at: int) -> ChatRequest:
    head = request.messages[: first_user(request)]
    return replace(request, messages=(*head, Message("user", "Write a poem about the sea.")))


EDITS: dict[Cause, tuple[Edit, ...]] = {
    Cause.REASONING_STRIPPED: (template_strips, harness_strips),
    Cause.TOOL_ARGUMENTS_RESERIALISED: (compact, spaced, reordered, malformed, template_respells),
    Cause.DEFAULT_ADDED: (gains_default, gains_default_first),
    Cause.TURN_DROPPED: (drops_exchange, drops_reply, goes_back),
    Cause.TURN_MERGED: (merges_assistant, merges_next, merges_user, inserts_attempt),
    Cause.WHITESPACE: (pads_reply, pads_result, template_trims),
    Cause.SYSTEM_PROMPT_VOLATILE: (new_version,),
    Cause.TOOLS_CHANGED: (adds_tool, removes_tool, rewords_tool),
    Cause.REMINDER: (reminder_in_message, reminder_message, drops_date),
    Cause.COMPACTION: (compacts, compacts_by_call, cuts_middle, clears_result),
    Cause.TOKENIZER_BOUNDARY: (other_cut,),
    Cause.IMAGE: (resized_image, dropped_image, same_image_other_size),
    Cause.OTHER_CONVERSATION: (subagent, second_task),
    Cause.UNKNOWN: (flips_token,),
}


@cache
def cases(cause: Cause, count: int = 20, seed: int = 0) -> tuple[tuple[str, Case], ...]:
    """`count` cases of `cause`, over all harnesses and edits in turn, each with a name to find it by."""
    return tuple(_cases(cause, count, seed))


def _cases(cause: Cause, count: int, seed: int) -> Iterator[tuple[str, Case]]:
    rng = random.Random(f"{cause}{seed}")
    turns, made, tried = cycle((h, e) for e in EDITS[cause] for h in kit.PROTOCOLS), 0, 0
    while made < count:
        harness, edit = next(turns)
        tried += 1
        assert tried < 40 * count, f"the recorded traffic has too little to edit for {cause}"
        request = rng.choice(kit.conversations(harness))
        at = rng.choice(kit.replies(request)[:-1] or kit.replies(request))
        if not honest(request, at):
            continue
        edited = edit(rng, request, at)
        if isinstance(edited, ChatRequest):
            whole = rng.random() < 0.7
            edited = Case(kit.history(request, at, whole=whole), kit.entry("c999", edited, None))
        if edited is not None and departs(edited):
            made += 1
            yield f"{cause} {made}: {edit.__name__} of {harness}, message {at} of {len(request.messages)}", edited


def honest(request: ChatRequest, at: int) -> bool:
    call = kit.history(request, at, whole=False)[0]
    return bool(kit.render(request)[: call.length] == call.sequence.tolist())


def departs(case: Case) -> bool:
    """An edit may be one that the template hides: then there is nothing to explain."""
    try:
        kit.explained(case.before, case.last)
    except ValueError:
        return False
    return True
