"""A player takes random steps on pauses, and says of each when it was called and what came back."""

import time

import pauseledger as pl
from pauseledger.infrastructure.linearizable import Operation

SESSION, CALL = "session", "call_a"
LABELS = ("Anne", "Bob")
TURN = [
    {"role": "user", "content": "Book me a table."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": CALL, "type": "function", "function": {"name": "ask", "arguments": "{}"}}],
    },
]
QUESTION = {"questions": [{"question": "Who?", "options": [{"label": label} for label in LABELS]}]}

#: What comes back, in the words of the judge of histories.
WORDS = {
    "AlreadyAnswered": "already_answered",
    "AlreadyConsumed": "already_consumed",
    "AlreadyContinued": "already_continued",
    "NotConsumed": "not_consumed",
    "NothingOwed": "nothing_owed",
    "PauseClosed": "closed",
    "PauseWithdrawn": "withdrawn",
    "ScopeMismatch": "refused",
    "TurnAbandoned": "abandoned",
}
#: How often each step is taken.
STEPS = {"pause": 2, "answer": 2, "redeem": 5, "recover": 2, "settle": 2, "withdraw": 1, "refuse": 1}


_SAID = ("said", "returned", "called", "id", "recorded", "own")


class Player:
    """One that acts on a ledger. What it knows of a run are its token and the claims it was given."""

    def __init__(self, ledger, name, chance, journal=None):
        self.ledger, self.name, self.chance, self.journal = ledger, name, chance, journal
        self.receipts, self.fences, self.count = {}, {}, 0

    async def step(self, run):
        """Take one random step on a run, the first always a pause; what nobody knows of is asked again."""
        known = run in self.receipts
        names = [name for name in STEPS if name != "settle" or self.fences.get(run)] if known else ["pause"]
        name = self.chance.choices(names, [STEPS[name] for name in names])[0]
        self.count += 1
        value = self.chance.choice(LABELS)
        key = f"{self.name}.{self.count}"
        told = {"run": run, "name": name, "value": value, "key": key}
        if name == "settle":
            told["fence"] = self.chance.choice(self.fences[run])
        taken = [await self.take(told)]
        while taken[-1]["said"] == "unknown" and len(taken) < 4:
            taken.append(await self.take({name: told[name] for name in told if name not in _SAID}))
        return taken

    async def take(self, told):
        """Take a step, writing it down before and after; one whose outcome is unknown is asked about with its key."""
        self.count += 1
        told |= {"id": f"{self.name}.{self.count}", "called": time.monotonic()}
        self.write(told)
        try:
            told |= await getattr(self, told["name"])(told)
        except pl.StoreUnavailable as gone:
            told["said"] = gone.outcome
        except pl.LedgerError as error:
            told |= {"said": WORDS[type(error).__name__], "own": getattr(error, "own", False)}
            told["recorded"] = getattr(error, "recorded", False)
        told["returned"] = time.monotonic()
        self.write(told)
        return told

    def write(self, told):
        if self.journal is not None:
            self.journal(told)

    def axes(self, told, tenant="acme"):
        return pl.Axes(scope=pl.Scope(tenant_id=tenant), session_id=SESSION, run_id=told["run"], call_id=CALL)

    def stated(self, told, tenant="acme"):
        envelope = pl.recognise(self.ledger.capability, self.receipts[told["run"]].token).envelope
        response = {"answers": [{"question_id": "q1", "selections": [told["value"]]}]}
        return {"envelope": envelope, "response": response, **dict(self.axes(told, tenant))}

    async def pause(self, told):
        command = pl.PauseCommand(
            interaction=pl.ASK_USER,
            request=QUESTION,
            turn=pl.Turn("openai-chat", TURN),
            axes=self.axes(told),
            closes_in=86_400,
        )
        receipt = await self.ledger.capability.pause(command)
        self.receipts[told["run"]] = receipt
        return {"said": "existing" if receipt.existing else "paused", "pause": str(receipt.pause_id)}

    async def answer(self, told):
        await self.ledger.capability.answer(pl.AnswerCommand(**self.stated(told)))
        return {"said": "answered"}

    async def redeem(self, told):
        turn = await pl.prepare(self.ledger.capability, **self.stated(told), attempt_key=told["key"])
        return self.given(told, turn)

    async def refuse(self, told):
        return self.given(told, await pl.prepare(self.ledger.capability, **self.stated(told, tenant="intruder")))

    async def recover(self, told):
        pause = self.receipts[told["run"]].pause_id
        command = pl.RecoverCommand(pause_id=pause, reason="forced")
        return self.given(told, await self.ledger.operator(pl.Actor(self.name)).recover(command))

    def given(self, told, turn):
        self.fences.setdefault(told["run"], []).append(turn.fence)
        return {"said": "won", "fence": turn.fence}

    async def settle(self, told):
        pause = self.receipts[told["run"]].pause_id
        command = pl.SettleCommand(pause, self.axes(told), told["fence"], "finished")
        await self.ledger.capability.settle(command)
        return {"said": "settled"}

    async def withdraw(self, told):
        pause = self.receipts[told["run"]].pause_id
        await self.ledger.capability.withdraw(pl.WithdrawCommand(pause_id=pause, axes=self.axes(told)))
        return {"said": "withdrawn"}


def operations(told):
    """Make a history out of what was told; what never started is no part of one, nor is a foreigner's attempt."""
    return [
        Operation(
            one["name"],
            one["called"],
            said=None if one.get("said") == "unknown" else one.get("said"),
            value=one["value"] if one["name"] in ("answer", "redeem") else None,
            key=one["key"],
            fence=one.get("fence", 0),
            own=one.get("own", False),
            **({"returned": one["returned"]} if one.get("said") not in (None, "unknown") else {}),
        )
        for one in told
        if one.get("said") != "not_started" and one["name"] != "refuse"
    ]
