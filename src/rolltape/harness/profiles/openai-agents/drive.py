"""One agent of the openai-agents SDK with a shell: prompt, model and base URL come from the environment."""

import os
import subprocess

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def bash(command: str) -> str:
    """Run a command in bash and return its output."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600)
    return f"{done.stdout}{done.stderr}\nexit status {done.returncode}"


def main() -> None:
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(os.environ["ROLLTAPE_MODEL"], AsyncOpenAI())
    agent = Agent(name="agent", instructions="You work in a shell. Say when you are done.", model=model, tools=[bash])
    print(Runner.run_sync(agent, os.environ["ROLLTAPE_PROMPT"], max_turns=100).final_output)


main()
