"""A host whose connections to PostgreSQL can be cut or stalled, and what it does."""

from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pauseledger as pl
from pauseledger.infrastructure.keys import KeyFile


def _load(name):
    spec = spec_from_file_location(f"pauseledger_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


proxy, scene = _load("proxy"), _load("scene")


class Host:
    """A ledger behind a proxy that cuts, and the operations of a host on one pause of it."""

    def __init__(self, ledger, cutting, run):
        self.ledger, self.cutting, self.run = ledger, cutting, run
        self.axes = scene.axes_of(run, scene.CALLS[0])
        self.receipt = self.turn = None

    async def pause(self):
        self.receipt = await self.ledger.capability.pause(scene.pause_commands(self.run)[0])
        return self.receipt

    def stated(self):
        envelope = pl.recognise(self.ledger.capability, self.receipt.token).envelope
        return {"envelope": envelope, "response": scene.answer("Anne"), **dict(self.axes)}

    async def redeem(self, key="key"):
        self.turn = await pl.prepare(self.ledger.capability, **self.stated(), attempt_key=key)
        return self.turn

    async def answer(self):
        return await self.ledger.capability.answer(pl.AnswerCommand(**self.stated()))

    async def recover(self):
        self.turn = await self.ledger.capability.recover(
            pl.RecoverCommand(pause_id=self.receipt.pause_id, axes=self.axes)
        )
        return self.turn

    async def settle(self):
        command = pl.SettleCommand(self.receipt.pause_id, self.axes, self.turn.fence, "finished")
        return await self.ledger.capability.settle(command)

    async def withdraw(self):
        return await self.ledger.capability.withdraw(pl.WithdrawCommand(pause_id=self.receipt.pause_id, axes=self.axes))


#: Each operation: what comes before it, what it gives, and the one fact it leaves.
OPERATIONS = {
    "pause": ([], "pause.paused"),
    "answer": (["pause"], "pause.answered"),
    "redeem": (["pause"], "pause.consumed"),
    "recover": (["pause", "answer"], "pause.consumed"),
    "settle": (["pause", "redeem"], "pause.continued"),
    "withdraw": (["pause"], "pause.withdrawn"),
}


def judge(operation, given):
    """Hold what the caller got against what it asked for."""
    if operation == "pause":
        assert isinstance(given, pl.PauseReceipt)
        assert given.existing is False
        assert given.token.startswith("plp1")
    elif operation in ("redeem", "recover"):
        assert isinstance(given, pl.ResumedTurn)
        assert given.fence == 1
    else:
        assert given.state == {"answer": "answered", "settle": "continued", "withdraw": "withdrawn"}[operation]


@asynccontextmanager
async def host_behind_a_proxy(pg, dsn, folder, run="run", **settings):
    KeyFile(folder / "keys").create()
    with proxy.Proxy(f"{pg.host}/.s.PGSQL.5432") as cutting:
        base, _, _ = dsn.partition("?")
        url = f"{base.replace('@/', f'@127.0.0.1:{cutting.port}/')}?sslmode=disable&gssencmode=disable"
        deadlines = {"connect_timeout": 1, "pool_timeout": 0.3, **settings}
        async with pl.open_ledger(url, pl.LedgerSettings(folder / "keys", threads=2, **deadlines)) as ledger:
            yield Host(ledger, cutting, run)
