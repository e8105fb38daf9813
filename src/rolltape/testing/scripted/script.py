"""What the scripted engine says: steps, faults, and the three forms of a script.

    a callable      (request, call_number) -> Step
    a sequence      Steps, consumed in the order of the calls; afterwards `default_reply`
    a JSONL file    one rule a line, the first that fits answers; none fits: `default_reply`

A rule is `{"match": REGEX, "turn": N, "times": N, ...step}`. `match` is searched in the last user or tool text, `turn`
is the number of assistant turns in the request, so both depend on the request alone and a script stays deterministic
however many rollouts run at once; `times` limits how often a rule answers, over all of them.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import msgspec

from rolltape.chat import ChatRequest, FinishReason
from rolltape.errors import ConfigError
from rolltape.testing.scripted.tokenizer import decode


class Fault(StrEnum):
    """What goes wrong with a call. `Step.after` is the number of tokens that a broken stream gives first."""

    REFUSE_400 = "refuse_400"
    """Refused: a bad request."""
    OVERFLOW = "overflow"
    """Refused with `context_length_exceeded`, whatever the prompt's length."""
    UNAVAILABLE = "unavailable"
    """Nothing answers (503)."""
    ERROR_500 = "error_500"
    """Answers 500 before any token."""
    HANG = "hang"
    """Never answers."""
    STALL = "stall"
    """Stops in mid-stream and never goes on."""
    SLOW = "slow"
    """A tenth of a second before every delta."""
    DIE_MID_STREAM = "die_mid_stream"
    """Breaks after some tokens."""
    ENDS_UNFINISHED = "ends_unfinished"
    """The stream just stops after some tokens, without an error."""
    NO_START = "no_start"
    """Tokens come without the event that starts them."""
    IDS_MISSING = "ids_missing"
    """Text, but neither ids nor log-probs."""
    PROMPT_IDS_MISSING = "prompt_ids_missing"
    LOG_PROBS_MISSING = "log_probs_missing"
    LOG_PROBS_SHORT = "log_probs_short"
    """The last delta has one log-prob too few."""
    LOG_PROBS_NAN = "log_probs_nan"
    """The second token's log-prob (the first's, if there is no other) is not a number."""
    COUNT_MISMATCH = "count_mismatch"
    """The engine counts three tokens more than it gave."""
    BAD_IDS = "bad_ids"
    """The last token's id is negative."""
    HELD_BACK_TEXT = "held_back_text"
    """No fault, but a trap: all text comes with the last delta, the ones before have ids only."""
    SPLIT_UTF8 = "split_utf8"
    """Characters of more than one byte are shown as U+FFFD, byte by byte."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply. `finish_reason` None: `tool_calls` where there are any, else `stop`.

    A step that finishes with `length` or `content_filter` samples no end token. `delay` is in seconds before each
    delta, None = the engine's.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments): the arguments' exact text, JSON or not."""
    finish_reason: FinishReason | None = None
    fault: Fault | None = None
    after: int = 2
    delay: float | None = None


class Rule(Step, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line of a script file: a step, and when it answers."""

    match: str | None = None
    turn: int | None = None
    times: int | None = None

    def fits(self, request: ChatRequest) -> bool:
        if self.turn is not None and self.turn != _turns(request):
            return False
        return self.match is None or re.search(self.match, last_input(request)) is not None


Answer: TypeAlias = Callable[[ChatRequest, int], Step]
Script: TypeAlias = Answer | Sequence[Step]


def answer_from(script: Script | None, path: str | None) -> Answer:
    """The function behind any form of script. Raises `ConfigError` for a file that is none."""
    if script is not None and path is not None:
        raise ConfigError("give the scripted engine a script or a script file, not both")
    if path is not None:
        return _by_rule(load_rules(path))
    if script is None:
        return default_reply
    return script if callable(script) else _in_order(tuple(script))


def load_rules(path: str) -> tuple[Rule, ...]:
    """The rules of a JSONL file (a path or a `file://` URL). Raises `ConfigError` naming the line."""
    try:
        lines = Path(path.removeprefix("file://")).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the script {path}: {error}") from error
    return tuple(_rule(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip())


def _rule(line: str, where: str) -> Rule:
    try:
        rule = msgspec.json.decode(line, type=Rule)
        re.compile(rule.match or "")
    except (msgspec.MsgspecError, re.error) as error:
        raise ConfigError(f"{where} is no rule of a script: {error}") from error
    return rule


def _by_rule(rules: tuple[Rule, ...]) -> Answer:
    answered = [0] * len(rules)

    def reply(request: ChatRequest, call_number: int) -> Step:
        for index, rule in enumerate(rules):
            if (rule.times is None or answered[index] < rule.times) and rule.fits(request):
                answered[index] += 1
                return rule
        return default_reply(request, call_number)

    return reply


def _in_order(steps: tuple[Step, ...]) -> Answer:
    return lambda request, number: steps[number] if number < len(steps) else default_reply(request, number)


WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "jade", "kelp", "lotus")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def default_reply(request: ChatRequest, call_number: int) -> Step:
    """A reply that depends on the request alone: for a raw prompt, words.

    With a tool named `bash`: `echo hello`, then mini-swe-agent's command for being done, then words. Without: words.
    """
    results = sum(message.role == "tool" for message in request.messages)
    commands = ("echo hello", SUBMIT)
    if _has_bash(request) and results < len(commands):
        arguments = msgspec.json.encode({"command": commands[results]}).decode()
        return Step(text=_words(request), tool_calls=(("bash", arguments),))
    return Step(text=_words(request))


def _has_bash(request: ChatRequest) -> bool:
    named = any(tool.get("function", {}).get("name") == "bash" for tool in request.tools)
    return named and request.tool_choice != "none"


def _words(request: ChatRequest) -> str:
    said = request.messages if request.prompt is None else request.prompt
    digest = hashlib.sha256(msgspec.json.encode(said)).digest()
    return " ".join(WORDS[byte % len(WORDS)] for byte in digest[:6])


def _turns(request: ChatRequest) -> int:
    return sum(message.role == "assistant" for message in request.messages)


def last_input(request: ChatRequest) -> str:
    """The text of the last user or tool message, or a raw prompt's; "" if there is none."""
    if request.prompt is not None:
        return request.prompt if isinstance(request.prompt, str) else decode(request.prompt)
    said = (message.text() for message in reversed(request.messages) if message.role in ("user", "tool"))
    return next(said, "")
