"""Two gateways on one TransferQueue, each with its journal, and a trainer that reads from the queue alone."""

from pathlib import Path

import aiohttp
import pytest

from rolltape import client
from rolltape.config import read_config
from rolltape.delivery import finalize_rollout_token_capture, retire_rollout_token_capture
from rolltape.gateway.serve import running
from rolltape.testing.scripted import ScriptedEngine, Step

from .cluster import Cluster
from .conftest import Make

pytestmark = pytest.mark.real


async def test_a_rollout_over_two_gateways_is_one_chain_for_the_trainer(
    tmp_path: Path, cluster: Cluster, make: Make, namespace: str
) -> None:
    def config(name: str):
        file = tmp_path / f"{name}.yaml"
        file.write_text(
            "token_id_capture:\n  enabled: true\n  sink: rolltape.store.transferqueue:TransferQueueStore\n"
            f"  sink_kwargs: {{dir: {tmp_path / name}, address: '{cluster.address}', namespace: {namespace}}}\n"
        )
        return read_config(file, dir=str(tmp_path / f"of-{name}"), port=0, control_token="one token for all")

    engine = ScriptedEngine(script=[Step(text="first"), Step(text="second")])
    messages = [{"role": "user", "content": "hi"}]
    async with (
        running(config("a"), engine=engine) as one,
        running(config("b"), engine=engine) as other,
        aiohttp.ClientSession() as http,
        make(None) as source,
    ):
        for gateway in (one, other):
            url = f"{gateway.url}/rollout/t-0/v1/chat/completions"
            async with http.post(url, json={"model": "scripted", "messages": messages}) as response:
                reply = (await response.json())["choices"][0]["message"]
            messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "go on"}]
        async with client.connect(other.url, other.control_token) as connection:
            await connection.outcome("t-0", reward=1.0)
            assert (await connection.state("t-0"))["n_entries"] == 2

        result = {"_ng_rollout_id": "t-0", "response": {"output": []}}
        built = await finalize_rollout_token_capture(result, source)
        assert built is not None
        assert "mask_sample" not in result
        assert result["_ng_token_capture"]["chains"] == 1
        assert result["_ng_token_capture"]["delivered_fraction"] == 1.0
        assert await retire_rollout_token_capture("t-0", source, built)

        async with http.post(
            f"{one.url}/rollout/t-0/v1/chat/completions", json={"model": "scripted", "messages": messages}
        ) as gone:
            assert gone.status == 403, "what one process retired takes no calls in another"
