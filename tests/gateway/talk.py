"""A harness in small, over chat completions: it asks, echoes what it was given, and adds tool results.

Each call brings the engine's reply along (`Step`), so a conversation reads from top to bottom.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from rolltape.testing.scripted import ScriptedEngine, Step

from .conftest import Lab, until

BASH = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
TASK = ({"role": "system", "content": "You work in a shell."}, {"role": "user", "content": "Count the files."})


class Prompted(ScriptedEngine):
    """Says the steps that the test puts into `steps`. `trims`: its template strips the turns that it renders again."""

    def __init__(self, *, trims: bool = False, **options: Any) -> None:
        self.steps: deque[Step] = deque()
        self.trims = trims
        super().__init__(script=lambda request, number: self.steps.popleft(), **options)

    def _plan(self, prompt, request, sampling, step):
        if self.trims:
            request = replace(request, messages=tuple(map(_trimmed, request.messages)))
        return super()._plan(prompt, request, sampling, step)


def _trimmed(message):
    return replace(message, content=message.text().rstrip()) if message.role == "assistant" else message


@dataclass
class Talk:
    """One conversation of rollout R1. `engine` is a `Prompted`."""

    lab: Lab
    messages: list[dict[str, Any]] = field(default_factory=lambda: [dict(message) for message in TASK])
    tools: list[dict[str, Any]] = field(default_factory=lambda: BASH)
    last_id: str | None = None
    turns: int = 0

    async def ask(self, step: Step, *, status: int = 200, headers: Mapping[str, str] | None = None, **fields: Any):
        """The assistant message of a whole reply; {} where another status than 200 is expected."""
        self.lab.engine.steps.append(step)
        body = {"model": "scripted", "messages": self.messages, "tools": self.tools, **fields}
        async with self.lab.http.post(self.lab.chat_url(), json=body, headers=headers) as response:
            reply = await response.json()
            assert response.status == status, reply
        if status != 200:
            return {}
        self.last_id = reply["id"]
        return reply["choices"][0]["message"]

    async def listen(self, step: Step, *, until_seen: bytes = b"", **fields: Any) -> bytes:
        """A streamed reply, to its end or until `until_seen`; then the client hangs up."""
        self.lab.engine.steps.append(step)
        body = {"model": "scripted", "messages": self.messages, "tools": self.tools, "stream": True, **fields}
        seen = b""
        async with self.lab.http.post(self.lab.chat_url(), json=body) as response:
            while chunk := await response.content.readany():
                seen += chunk
                if until_seen and until_seen in seen:
                    response.close()
                    break
        await until(lambda: self.lab.engine.alive == 0)
        return seen

    def keep(self, message: Mapping[str, Any], result: str | None = None, **changes: Any) -> None:
        """Echo an assistant turn, with `changes`, and the result of its tool call."""
        names = ("role", "content", "reasoning_content", "tool_calls")
        echoed = {name: message[name] for name in names if message.get(name)} | changes
        self.messages.append({name: value for name, value in echoed.items() if value is not None})
        for call in echoed.get("tool_calls") or ():
            self.messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": result or f"{self.turns} files"}
            )

    def look(self, text: str = "", **fields: Any) -> Step:
        """The next step of the work: some words and a tool call."""
        self.turns += 1
        text = text or f"I look at part {self.turns}."
        return Step(text=text, tool_calls=(("bash", f'{{"command": "ls {self.turns}"}}'),), **fields)

    async def work(self, turns: int = 1) -> None:
        """Tool calls, each with its result."""
        for _ in range(turns):
            self.keep(await self.ask(self.look()))

    async def finish(self, text: str = "There are 12 files.") -> None:
        """The last reply."""
        self.keep(await self.ask(Step(text=text)))

    async def entries(self):
        """The recorded calls in their order. Ends the rollout: its freeze also writes what was noted of deliveries."""
        frozen = await self.lab.store.freeze("R1")
        return sorted(frozen.entries, key=lambda entry: entry.step_index)
