"""Output items and the response object around them, for whole replies and for streams alike.

Item ids hold the call's id, so that an echoed item finds its call: `rs_` reasoning, `msg_` text, `fc_` and `ctc_` tool
calls. `tools` and `instructions` of a request are not sent back: an agent's tools would be most of every reply.
"""

from rolltape.chat import ChatRequest, FinishReason, Json, Reply, ToolCall, Usage
from rolltape.wire.openai_responses.decode import wants_sealed_reasoning
from rolltape.wire.openai_responses.tools import custom_input, origin

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Items:
    """Makes the items of one reply."""

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self.request = request
        self.call = reply_id.removeprefix("resp_")
        self._sealed = wants_sealed_reasoning(request)

    def item_id(self, prefix: str, number: int) -> str:
        """An id that is unique in the reply; `number` counts the items of its kind from 0."""
        return f"{prefix}_{self.call}" if number == 0 else f"{prefix}_{self.call}_{number}"

    def reasoning(self, number: int, text: str | None, status: str) -> Json:
        """A reasoning item; `text` None: none yet."""
        summary = [] if text is None else [{"type": "summary_text", "text": text}]
        sealed = {"encrypted_content": self.call} if self._sealed else {}
        return {"type": "reasoning", "id": self.item_id("rs", number), "summary": summary, "status": status, **sealed}

    def message(self, number: int, text: str | None, status: str) -> Json:
        """A message item; `text` None: no part yet."""
        parts = [] if text is None else [text_part(text)]
        head = {"type": "message", "id": self.item_id("msg", number), "role": "assistant"}
        return {**head, "status": status, "content": parts}

    def tool_call(self, number: int, call: ToolCall, status: str) -> Json:
        """A call in the form of its tool: function, namespaced function, or custom."""
        tool = origin(self.request, call.name)
        custom = tool.custom
        said = {"input": custom_input(call.arguments)} if custom else {"arguments": call.arguments}
        item: Json = {
            "type": "custom_tool_call" if custom else "function_call",
            "id": self.item_id("ctc" if custom else "fc", number),
            "call_id": call.id,
            "name": tool.name,
            **said,
            "status": status,
        }
        return item if tool.namespace is None else item | {"namespace": tool.namespace}

    def of(self, reply: Reply) -> list[Json]:
        """The items of a whole reply. What was cut is the last one, so that one is incomplete."""
        message = reply.message
        items: list[Json] = []
        if message.reasoning:
            items.append(self.reasoning(0, message.reasoning, "completed"))
        if message.text():
            items.append(self.message(0, message.text(), "completed"))
        items += [self.tool_call(number, call, "completed") for number, call in enumerate(message.tool_calls)]
        if items and reply.finish_reason in INCOMPLETE:
            items[-1]["status"] = "incomplete"
        return items


def text_part(text: str) -> Json:
    """The one part of a message. Log-probs are not among what it tells."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def response(request: ChatRequest, reply_id: str, created: int, status: str, **more: object) -> Json:
    """The response object; `more` is laid over it."""
    own = request.aside
    asked = request.sampling
    body: Json = {
        "id": reply_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": asked.get("max_tokens"),
        "metadata": request.extra.get("metadata") or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.extra.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": own.get("reasoning"),
        "store": False,
        "temperature": asked.get("temperature"),
        "text": own.get("text") or {"format": {"type": "text"}},
        "tool_choice": _tool_choice(request),
        "tools": [],
        "top_p": asked.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }
    return body | more


def ended(finish_reason: FinishReason, output: list[Json], tokens: Usage | None) -> Json:
    """What a response that ended by itself has over one that is in progress. `tokens` None: usage is not known."""
    reason = INCOMPLETE.get(finish_reason)
    return {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output,
        "usage": None if tokens is None else usage(tokens),
    }


def usage(tokens: Usage) -> Json:
    """Counts under this dialect's names. The parts that are not known are 0: SDKs want numbers there."""
    return {
        "input_tokens": tokens.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tokens.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": tokens.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning_tokens or 0},
        "total_tokens": tokens.prompt_tokens + tokens.completion_tokens,
    }


def _tool_choice(request: ChatRequest) -> object:
    choice = request.tool_choice
    if not isinstance(choice, dict):
        return choice or "auto"
    tool = origin(request, choice["function"]["name"])
    named = {"type": "custom" if tool.custom else "function", "name": tool.name}
    return named if tool.namespace is None else named | {"namespace": tool.namespace}
