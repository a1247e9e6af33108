"""What the tests of each refusal have in common: a store in turn, a ledger on it, and one question asked."""

import pytest
from pauseledger.infrastructure.stories import Stage, asked


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def question(ledger):
    return await asked(ledger)
