"""How long a forged token and a wrong axis are judged: microseconds in this process, with no store behind it."""

import os
import statistics
import time
from uuid import uuid4

import pauseledger as pl
from pauseledger.domain import axes as binding
from pauseledger.domain.envelope import Terms, axis_tag
from pauseledger.infrastructure.keys import Key, KeyRing
from pauseledger.infrastructure.seal import TokenSeal

KID = "0a1b2c3d"


def seal_of(ledger):
    """Make a seal under a key of its own, which says of itself that it is the one key."""
    return TokenSeal(KeyRing([Key(kid=KID, secret=os.urandom(32), state="mints")]), ledger_id=ledger)


def terms():
    """Say what a token of acme's session says."""
    pause, now = uuid4(), int(time.time())
    tags = {axis: axis_tag(axis, pause, axis) for axis in ("session", "run", "call")}
    digests = dict.fromkeys(("row_digest", "request_digest", "turn_digest"), bytes(16))
    scope = axis_tag("scope", pause, *pl.Scope(tenant_id="acme").parts())
    return Terms(pause, **digests, scope=scope, **tags, opens=now, closes=now + 3600, generation=0, epoch=1)


def microseconds(judge, refusal, times):
    """Take the median of single judgements, each of which must refuse."""
    took = []
    for _ in range(times):
        begun = time.perf_counter_ns()
        try:
            judge()
        except refusal:
            took.append(time.perf_counter_ns() - begun)
            continue
        raise AssertionError("it was let in")
    return statistics.median(took) / 1000


def judge(times=5000):
    """Measure a token that fails only under the key (the costliest forgery), and one that states another session."""
    ledger = uuid4()
    seal, another = seal_of(ledger), seal_of(ledger)
    token, forged = seal.mint(terms()).token, another.mint(terms()).token
    wrong = pl.Axes(scope=pl.Scope(tenant_id="acme"), session_id="another", run_id="run", call_id="call")
    return {
        "forged": microseconds(lambda: seal.open(forged), pl.TokenForged, times),
        "wrong_axis": microseconds(lambda: binding.judge(seal.open(token), wrong), pl.SessionMismatch, times),
    }


if __name__ == "__main__":
    print(judge())
