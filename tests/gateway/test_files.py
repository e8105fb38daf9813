"""What a gateway writes is its user's alone, whatever the umask allows."""

import os
import stat

import pytest


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
async def test_every_file_of_the_store_is_private(gateway, tmp_path) -> None:
    async with gateway() as lab:
        status, _ = await lab.ask()
        assert status == 200
        await lab.store.freeze("R1")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").rglob("*")}
        assert {"rolltape.db", "rolltape.db-wal", "rolltape.db-shm", "control-token"} <= modes.keys()
        folders = [path for path in (tmp_path / "store").rglob("*") if path.is_dir()]
        files = {name: mode for name, mode in modes.items() if name not in {path.name for path in folders}}
        assert set(files.values()) == {0o600}, files
        assert {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "store", *folders]} == {0o700}
