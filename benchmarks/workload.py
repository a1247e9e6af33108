"""The job everyone does: keep a turn of 12 messages (8 KB) and a question (1 KB), and redeem a token with an answer.

A peer is a class that does it with one product:

    setup()            make ready; `where` is an empty database's URL or a file's path, `conc` how many work at once
    pause(number)      keep turn `number` on the disk, and give what redeems it
    redeem(handle)     load, judge, validate the answer, consume once on the disk, and give the messages back
    refuse(handle)     the same by the wrong tenant, who must be turned away
    race(handle, n)    redeem n times at once; give a word for each: won, or what the losers were told
    prefill(number)    put that many redeemed pauses into the store, as cheaply as it takes them
    close()

The methods are coroutines where `is_async`; where not, they are called by threads, and `race_one(handle)` stands for
`race`. Everyone reads the same texts, so that they compress alike; nothing is kept between two calls but connections.
"""

import base64
import hashlib
import hmac
import json
import random
import time
import uuid
from typing import Literal

from pydantic import BaseModel

TENANT = "acme"
SECRET = b"the secret of a benchmark"
HOUR = 3600
SAID = (
    "the customer asks for a refund of order item because parcel came late and invoice shows an amount above limit that"
    " needs approval of manager before account is credited while history of twelve earlier orders was delivered on time"
)
WORDS = SAID.split()


def text(chance, size):
    """Write so many characters: words, and a number now and then, lest all of it compress away."""
    made = ""
    while len(made) < size:
        made += (chance.choice(WORDS) if chance.random() < 0.8 else f"{chance.getrandbits(32):x}") + " "
    return made[:size]


def calling(chance, call, name, args, size):
    """Make a message that calls a tool."""
    return {
        "role": "assistant",
        "content": text(chance, size),
        "tool_calls": [{"id": call, "name": name, "args": args}],
    }


def make_messages(seed):
    """Make twelve messages: a system's, a person's, four calls with their results, and the call that asks."""
    chance = random.Random(seed)
    messages = [{"role": "system", "content": text(chance, 900)}, {"role": "user", "content": text(chance, 500)}]
    for number in range(4):
        call = f"call_{chance.getrandbits(64):016x}"
        args = {"order": chance.getrandbits(40), "q": text(chance, 120)}
        messages.append(calling(chance, call, f"lookup_{number}", args, 180))
        messages.append({"role": "tool", "tool_call_id": call, "content": text(chance, 1000)})
    messages.append({"role": "user", "content": text(chance, 250)})
    messages.append(calling(chance, "call_pause", "ask_user", {"reason": text(chance, 100)}, 120))
    return messages


def make_request(seed):
    """Make what a person is asked."""
    chance = random.Random(f"request {seed}")
    options = [{"label": label, "description": text(chance, 60)} for label in ("approve", "reject")]
    asked = {"kind": "approval", "title": text(chance, 60), "body": text(chance, 600)}
    return {**asked, "amount": chance.randrange(10_000), "options": options}


POOL = [(make_messages(seed), make_request(seed)) for seed in range(64)]
ANSWER = {"decision": "approve", "amount": 42, "note": "all right by me, but stay below the limit the next time"}


class Answer(BaseModel, frozen=True, extra="forbid"):
    """What an answer has to be."""

    decision: Literal["approve", "reject"]
    amount: int
    note: str


def turn(number):
    """Give a turn's messages, and its request."""
    return POOL[number % len(POOL)]


def packed(value):
    """Write JSON as everyone by hand does."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


class RefusedError(Exception):
    """The token is forged, over, another tenant's, or of another request."""


class ConsumedError(Exception):
    """Somebody was first."""


def mint(pause, request, tenant=TENANT):
    """Make a token as one would by hand: what it is for, and an HMAC."""
    claims = {"p": pause.hex, "h": hashlib.sha256(request).hexdigest(), "t": tenant, "e": int(time.time()) + HOUR}
    body = base64.urlsafe_b64encode(packed(claims))
    return body + b"." + base64.urlsafe_b64encode(hmac.digest(SECRET, body, "sha256"))


def opened(token, tenant=TENANT):
    """Judge a token; give the pause's id, and the digest of its request."""
    body, _, seal = token.partition(b".")
    if not hmac.compare_digest(base64.urlsafe_b64encode(hmac.digest(SECRET, body, "sha256")), seal):
        raise RefusedError("forged")
    claims = json.loads(base64.urlsafe_b64decode(body))
    if claims["e"] < time.time():
        raise RefusedError("over")
    if claims["t"] != tenant:
        raise RefusedError("another tenant's")
    return uuid.UUID(claims["p"]), claims["h"]


def judged(request, digest):
    """Hold the stored request against the token, and the answer against what it has to be; give it as stored."""
    if hashlib.sha256(request).hexdigest() != digest:
        raise RefusedError("another request's")
    return Answer.model_validate(ANSWER).model_dump_json().encode()


class Peer:
    """What the runner reads of a peer without making one; all are literals in its class."""

    name = ""
    store = "pg"
    is_async = True
    ops = ("pause", "redeem")

    def __init__(self, where, conc):
        self.where, self.conc = where, conc
