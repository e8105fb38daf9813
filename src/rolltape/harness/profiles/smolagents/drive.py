"""One tool-calling agent of smolagents with a shell: prompt, model and base URL come from the environment."""

import os
import subprocess

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def bash(command: str) -> str:
    """Run a command in bash and return its output.

    Args:
        command: the command line.
    """
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600)
    return f"{done.stdout}{done.stderr}\nexit status {done.returncode}"


def main() -> None:
    model = OpenAIServerModel(model_id=os.environ["ROLLTAPE_MODEL"])
    print(ToolCallingAgent(tools=[bash], model=model, max_steps=100).run(os.environ["ROLLTAPE_PROMPT"]))


main()
