"""One agent of the OpenHands SDK with its terminal and editor: prompt and model come from the environment."""

import os

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr


def main() -> None:
    llm = LLM(
        model=f"openai/{os.environ['ROLLTAPE_MODEL']}",
        api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
        base_url=os.environ["OPENAI_BASE_URL"],
        usage_id="agent",
    )
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
    conversation = Conversation(agent=agent, workspace=os.getcwd())
    conversation.send_message(os.environ["ROLLTAPE_PROMPT"])
    conversation.run()


main()
