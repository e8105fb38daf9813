"""The control API against its own document: whatever it is sent, it answers as it says that it would."""

import asyncio

import schemathesis
from schemathesis.config import SchemathesisConfig

from rolltape.gateway.control import document
from rolltape.gateway.control.api import Control
from rolltape.gateway.control.operations import operations
from rolltape.testing.scripted import Step

OPERATIONS = sorted((one.method, one.path) for one in operations(Control))
CONFIG = """
[phases.examples]
enabled = true
[phases.fuzzing]
enabled = true
[generation]
deterministic = true
max-examples = 8
"""


async def get(lab, path: str, token: str | None = None):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with lab.http.get(lab.url + path, headers=headers) as response:
        return response.status, await response.json()


async def test_the_document_is_behind_the_control_token_and_names_every_operation(gateway):
    async with gateway() as lab:
        assert (await get(lab, "/control/openapi.json"))[0] == 401
        status, told = await get(lab, "/control/openapi.json", lab.token)
    assert status == 200
    assert told == document()
    assert sorted((m.upper(), path) for path, methods in told["paths"].items() for m in methods) == OPERATIONS


def failures(url: str, token: str) -> list[str]:
    """What schemathesis finds at `url`, in words."""
    headers = {"Authorization": f"Bearer {token}"}
    schema = schemathesis.openapi.from_url(
        f"{url}/control/openapi.json", headers=headers, config=SchemathesisConfig.from_str(CONFIG)
    )
    schema.config.update(base_url=url, headers=headers)
    found: list[str] = []
    cases = 0
    for event in schemathesis.engine.from_schema(schema).execute():
        if isinstance(event, schemathesis.engine.events.ScenarioFinished):
            for recorded in event.recorder.checks.values():
                cases += len(recorded)
                found += [
                    f"{event.label}: {c.name}: {c.failure_info.failure}\n{c.failure_info.code_sample}"
                    for c in recorded
                    if c.failure_info
                ]
        if isinstance(event, schemathesis.engine.events.NonFatalError | schemathesis.engine.events.FatalError):
            found.append(str(event))
    assert cases > 20 * len(OPERATIONS)
    return found


async def test_schemathesis_finds_nothing(gateway):
    async with gateway(script=[Step(text="hello there")] * 4) as lab:
        assert (await lab.ask("task-0"))[0] == 200
        assert await asyncio.to_thread(failures, lab.url, lab.token) == []
