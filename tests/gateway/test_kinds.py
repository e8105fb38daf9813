"""The gateway says of each call what kind it is, by the rollout's label or by the harness's own name."""

CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, sdk-cli)", "x-claude-code-session-id": "s"}
BASH = [{"name": "Bash", "input_schema": {"type": "object"}}]


async def ask(lab, headers, **fields):
    body = {"model": "scripted", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}], **fields}
    async with lab.http.post(f"{lab.url}/rollout/R1/v1/messages", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()


async def test_a_call_of_a_known_harness_is_recorded_with_its_kind_and_the_evidence(gateway):
    title = {"format": {"type": "json_schema", "schema": {"properties": {"title": {"type": "string"}}}}}
    async with gateway() as lab:
        await ask(lab, CLAUDE, tools=BASH)
        await ask(lab, {**CLAUDE, "x-claude-code-agent-id": "a1"}, tools=BASH)
        await ask(lab, CLAUDE, output_config=title)
        recorded = [(entry.kind, entry.kind_evidence) for entry in await lab.entries()]

    assert [kind for kind, _ in recorded] == ["agent", "subagent", "title"]
    assert recorded[1][1] == "claude-code 2.1.332: header:x-claude-code-agent-id has 'a'"


async def test_the_label_of_the_rollout_names_a_harness_that_does_not_name_itself(gateway):
    async with gateway() as lab, lab.control() as control:
        await control.create("R1", {"harness": "mini-swe-agent"}, {})
        await lab.ask()
        (entry,) = await lab.entries()

    assert (entry.kind, entry.kind_evidence) == ("agent", "mini-swe-agent 2.4.6: every call")


async def test_a_call_that_nothing_is_known_of_has_no_kind(gateway):
    async with gateway() as lab:
        await lab.ask()
        (entry,) = await lab.entries()

    assert (entry.kind, entry.kind_evidence) == (None, None)
