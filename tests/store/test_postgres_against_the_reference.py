"""Whatever is done to it in whatever order, the PostgreSQL store says what the reference in memory says."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from rolltape.store.postgres import PostgresStore

from .postgres_server import Server
from .test_against_the_reference import Stores

pytestmark = pytest.mark.real

running: list[Server] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with Server() as started:
        running.append(started)
        yield
        running.pop()


class OnPostgres(Stores):
    """The same steps; the second store is opened again in the same database."""

    dsn: str | None = None

    def make(self) -> PostgresStore:  # type: ignore[override]
        if self.dsn is None:
            self.dsn = running[0].database()
        return PostgresStore(self.dsn, settle_seconds=0)


TestPostgresAgrees = OnPostgres.TestCase
TestPostgresAgrees.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
