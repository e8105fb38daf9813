"""Why a prefix broke, by name: what each cause means and what to do about it."""

from collections.abc import Mapping
from enum import StrEnum


class Cause(StrEnum):
    """What made the first token differ."""

    REASONING_STRIPPED = "reasoning_stripped"
    TOOL_ARGUMENTS_RESERIALISED = "tool_arguments_reserialised"
    DEFAULT_ADDED = "default_added"
    TURN_DROPPED = "turn_dropped"
    TURN_MERGED = "turn_merged"
    WHITESPACE = "whitespace"
    SYSTEM_PROMPT_VOLATILE = "system_prompt_volatile"
    TOOLS_CHANGED = "tools_changed"
    REMINDER = "reminder"
    COMPACTION = "compaction"
    TOKENIZER_BOUNDARY = "tokenizer_boundary"
    IMAGE = "image"
    OTHER_CONVERSATION = "other_conversation"
    UNKNOWN = "unknown"


MEANING: Mapping[Cause, str] = {
    Cause.REASONING_STRIPPED: "the thinking of an earlier turn is no longer in the prompt",
    Cause.TOOL_ARGUMENTS_RESERIALISED: "the arguments of a tool call came back in another spelling",
    Cause.DEFAULT_ADDED: "the arguments of a tool call came back with members that were not sampled",
    Cause.TURN_DROPPED: "a turn is no longer in the history",
    Cause.TURN_MERGED: "turns came back joined, split, or with another put between them",
    Cause.WHITESPACE: "a text came back with other white space",
    Cause.SYSTEM_PROMPT_VOLATILE: "the system prompt changed in mid-conversation",
    Cause.TOOLS_CHANGED: "the list of tools changed in mid-conversation",
    Cause.REMINDER: "a text that the harness adds by itself came, went or changed",
    Cause.COMPACTION: "the history was cut or summarised",
    Cause.TOKENIZER_BOUNDARY: "the same text was cut into other tokens",
    Cause.IMAGE: "an image came, went or changed",
    Cause.OTHER_CONVERSATION: "another conversation begins: a sub-agent, a title, a second task",
    Cause.UNKNOWN: "nothing recorded tells",
}

ADVICE: Mapping[Cause, str] = {
    Cause.REASONING_STRIPPED: (
        "Serve with a chat template that keeps the thinking of earlier turns, or sample in `continue` mode. Where the "
        "harness itself drops it, choose a protocol in which it sends thinking back."
    ),
    Cause.TOOL_ARGUMENTS_RESERIALISED: (
        "Sample in `continue` mode, which finds the sampled call by its id. In observe mode only a harness that echoes "
        "arguments as text, and an engine that renders them as text, keeps the prefix."
    ),
    Cause.DEFAULT_ADDED: (
        "Sample in `continue` mode, or give the tool a schema without defaults: the harness fills them in."
    ),
    Cause.TURN_DROPPED: (
        "Nothing is lost from training: the dropped turn is a row of its own (rejected or abandoned). A harness that "
        "drops replies without a tool call keeps them if its prompt demands one."
    ),
    Cause.TURN_MERGED: (
        "Mostly a reply that was cut or interrupted: raise `max_tokens`, and send the harness no second prompt while "
        "it works. Sample in `continue` mode where the harness merges as a rule."
    ),
    Cause.WHITESPACE: (
        "Serve with a chat template that strips nothing, or sample in `continue` mode: the prompt is then extended in "
        "tokens."
    ),
    Cause.SYSTEM_PROMPT_VOLATILE: (
        "Set the harness's switch that keeps dates, versions and ids out of the system prompt (Claude Code: "
        "CLAUDE_CODE_ATTRIBUTION_HEADER=0) in the profile's `env`."
    ),
    Cause.TOOLS_CHANGED: (
        "Send all tools from the first call on: turn off deferred tools in the profile's `env` (Claude Code: "
        "ENABLE_TOOL_SEARCH=false), and connect tool servers before the run."
    ),
    Cause.REMINDER: (
        "Turn the reminder off in the harness's settings or the profile's `config`, or sample in `continue` mode."
    ),
    Cause.COMPACTION: (
        "Expected where a context is full. To have fewer, tell the harness the real context length (`context` in the "
        "profile) or serve a longer one; each part is trained as a row of its own."
    ),
    Cause.TOKENIZER_BOUNDARY: (
        "Sample in `continue` mode: sampled ids are kept, where a text that is tokenised again may be cut otherwise."
    ),
    Cause.IMAGE: ("Have the harness send each image once and unchanged, and not drop or shrink it in later requests."),
    Cause.OTHER_CONVERSATION: "Nothing: a conversation of its own starts a row of its own.",
    Cause.UNKNOWN: (
        "Keep texts on (`texts: true`) and give `rolltape explain` the tokenizer; if it stays unknown, compare both "
        "texts by hand."
    ),
}
"""One or two sentences for each cause."""
