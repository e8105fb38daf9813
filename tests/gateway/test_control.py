"""The control API and its client: what a trainer in another process can do."""

import asyncio

import pytest

from rolltape import client
from rolltape.delivery import finalize_rollout_token_capture, retire_rollout_token_capture
from rolltape.errors import ConflictError, RequestError, RetiredError
from rolltape.testing.scripted import Step

from .conftest import CHAT

HELLO = [Step(text="hello there")]


async def post(lab, path, body=None, token=None):
    headers = {"authorization": f"Bearer {token or lab.token}"}
    async with lab.http.post(lab.url + path, json=body or {}, headers=headers) as response:
        return response.status, await response.json()


async def test_every_control_route_wants_the_token(gateway):
    async with gateway() as lab:
        for method, path in [
            ("POST", "/control/rollouts"),
            ("GET", "/control/rollouts"),
            ("GET", "/control/rollouts/R1"),
            ("POST", "/control/rollouts/R1/freeze"),
            ("GET", "/control/rollouts/R1/entries"),
            ("GET", "/control/rollouts/R1/rows"),
            ("POST", "/control/rollouts/R1/retire"),
            ("POST", "/control/rollouts/R1/outcome"),
            ("POST", "/control/policy"),
            ("GET", "/metrics"),
        ]:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                async with lab.http.request(method, lab.url + path, json={}, headers=headers) as response:
                    assert response.status == 401, path
        for path in ("/healthz", "/readyz"):
            async with lab.http.get(lab.url + path) as response:
                assert response.status == 200


async def test_a_rollout_from_announcement_to_retirement_over_http(gateway):
    async with gateway(script=HELLO, auth="keys") as lab:
        async with lab.control().rollout("task-0", labels={"task": "t"}) as rollout:
            url = rollout.base_urls["openai"] + "/chat/completions"
            assert url.endswith("/rollout/task-0" + CHAT)
            body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
            key = {"authorization": f"Bearer {rollout.api_key}"}
            async with lab.http.post(url, json=body, headers=key) as response:
                assert response.status == 200
            async with lab.http.post(url, json=body, headers={"authorization": "Bearer dummy"}) as response:
                assert response.status == 401
            await rollout.finish(reward=0.5, labels={"note": "half"})
        connection = lab.control()
        state = await connection.state("task-0")
        assert (state["n_entries"], state["reward"], state["ending"]) == (1, 0.5, "finished")
        assert state["labels"]["note"] == "half"
        frozen = await connection.freeze("task-0")
        assert (frozen["n_entries"], frozen["incomplete"]) == (1, False)
        rows = await connection.rows("task-0", delivery="forest")
        assert rows["rows"][0]["reward"] == 0.5
        assert not rows["mask_sample"]
        wrong = await connection.retire("task-0", snapshot_id=frozen["snapshot_id"], version=frozen["version"] + 1)
        assert wrong is False
        assert await connection.retire("task-0", snapshot_id=frozen["snapshot_id"], version=frozen["version"])
        with pytest.raises(RetiredError):
            await connection.freeze("task-0")
        assert (await connection.entries("task-0"))["entries"], "people can still look"
        await connection.close()


async def test_a_trainer_elsewhere_finalizes_and_retires_through_the_remote_source(gateway):
    async with gateway(script=HELLO) as lab, lab.control() as connection:
        await lab.ask("t-0")
        result = {"_ng_rollout_id": "t-0", "response": {"output": []}}
        built = await finalize_rollout_token_capture(result, connection.source())
        (item,) = [i for i in result["response"]["output"] if "generation_token_ids" in i]
        (entry,) = await lab.entries("t-0")
        assert item["prompt_token_ids"] == entry.prompt_token_ids.tolist()
        assert item["generation_token_ids"] == entry.generation_token_ids.tolist()
        assert "mask_sample" not in result
        assert await retire_rollout_token_capture("t-0", connection.source(), built)


async def test_a_rollout_id_is_given_out_once(gateway):
    async with gateway() as lab:
        async with lab.control().rollout("t-0"):
            pass
        with pytest.raises(ConflictError):
            async with lab.control().rollout("t-0"):
                pass


async def test_a_rollout_without_an_id_gets_a_fresh_one(gateway):
    async with gateway() as lab, lab.control().rollout() as a, lab.control().rollout() as b:
        assert a.rollout_id != b.rollout_id


async def test_a_rollout_left_by_an_exception_has_crashed_and_has_no_reward(gateway):
    async with gateway() as lab:
        with pytest.raises(RuntimeError):
            async with lab.control().rollout("t-0"):
                raise RuntimeError("harness")
        state = await lab.store.rollout("t-0")
        assert (state.ending, state.reward) == ("crashed", None)


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/control/rollouts", {"rollout_id": "../x"}, 400, "no rollout id"),
        ("/control/rollouts", {"rolout_id": "x"}, 400, "rolout_id"),
        ("/control/rollouts", {"budget": {"calls": "many"}}, 400, "budget"),
        ("/control/rollouts/R1/outcome", {"reward": "high"}, 400, "reward"),
        ("/control/rollouts/R1/retire", {"snapshot_id": "x"}, 400, "version"),
        ("/control/policy", {"state": "sleeping"}, 400, "sleeping"),
        ("/control/nowhere", {}, 404, "no route"),
    ],
)
async def test_a_bad_control_request_says_what_is_wrong(gateway, path, body, status, named):
    async with gateway() as lab:
        got, answer = await post(lab, path, body)
        assert got == status
        assert named in answer["error"]["message"]


async def test_unknown_rollouts_are_404(gateway):
    async with gateway() as lab, lab.control() as connection:
        for ask in (connection.state("R9"), connection.entries("R9"), connection.rows("R9")):
            with pytest.raises(RequestError) as refused:
                await ask
            assert refused.value.status == 404


async def test_a_pause_holds_calls_and_a_new_version_labels_the_next(gateway):
    async with gateway(script=HELLO * 3) as lab, lab.control() as connection:
        await connection.set_policy(version="7")
        await lab.ask()
        await connection.set_policy(state="paused")
        waiting = asyncio.create_task(lab.ask())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert lab.engine.started == 1
        await connection.set_policy(version="8", state="serving")
        assert (await waiting)[0] == 200
        first, second = await lab.entries()
    assert (first.policy_version, second.policy_version) == ("7", "8")


async def test_an_update_during_a_call_leaves_its_label_and_shows_at_its_end(gateway):
    async with gateway(script=[Step(text="slowly", delay=0.1)]) as lab, lab.control() as connection:
        await connection.set_policy(version="7")
        call = asyncio.create_task(lab.ask())
        await asyncio.sleep(0.1)
        await connection.set_policy(version="8")
        await call
        (entry,) = await lab.entries()
    assert (entry.policy_version, entry.policy_version_end) == ("7", "8")


@pytest.mark.parametrize("budget", [{"calls": 2}, {"tokens": 10}, {"seconds": 0}])
async def test_a_rollout_over_budget_is_stopped_with_403(gateway, budget):
    async with gateway(script=HELLO * 9) as lab:
        async with lab.control().rollout("t-0", budget=budget):
            for _ in range(4):
                status, reply = await lab.ask("t-0")
                if status != 200:
                    break
        assert (status, reply["error"]["code"]) == (403, "budget_exhausted")
        held = await lab.store.freeze("t-0")
        assert not held.incomplete


async def test_a_call_that_is_not_captured_spends_the_budget_all_the_same(gateway):
    async with gateway(script=HELLO * 9) as lab, lab.control().rollout("t-0", budget={"calls": 1}):
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        for wanted in (200, 403):
            async with lab.http.post(f"{lab.url}/ng-rollout/t-0{CHAT}", json=body) as response:
                assert response.status == wanted


async def test_metrics_are_there_for_prometheus(gateway):
    async with gateway(script=HELLO) as lab:
        await lab.ask()
        headers = {"authorization": f"Bearer {lab.token}"}
        async with lab.http.get(f"{lab.url}/metrics", headers=headers) as response:
            text = await response.text()
    assert 'rolltape_calls_total{captured="true",outcome="completed",protocol="openai_chat"} 1.0' in text


async def test_a_gateway_that_is_not_there_is_a_clear_error():
    async with client.connect("http://127.0.0.1:9", "x") as connection:
        with pytest.raises(Exception, match="does not answer"):
            await connection.rollouts()


@pytest.mark.parametrize(
    "body",
    [
        b'{"labels":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b'{"labels": {"budget": "lots"}}',
        b'{"budget": {"calls": -1}}',
        b'{"labels": {"a": "\xff"}}',
    ],
)
async def test_a_rollout_that_is_announced_with_garbage_is_refused_in_json(gateway, body):
    async with gateway() as lab:
        headers = {"authorization": f"Bearer {lab.token}"}
        async with lab.http.post(f"{lab.url}/control/rollouts", data=body, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] in ("bad_request", "bad_label")
        assert not await lab.store.rollouts()


async def test_a_label_named_budget_that_is_none_does_not_stop_the_rollout(gateway):
    async with gateway(script=HELLO) as lab:
        await lab.store.create_rollout("R1", {"budget": "lots"})
        assert (await lab.ask("R1"))[0] == 200
