"""The stored format, pinned for good: what is written today is read in years, and whatever was altered is found."""

import hashlib
import hmac
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
import zstandard
from eventsourcing.persistence import StoredEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pauseledger import (
    ASK_USER,
    STORED,
    Actor,
    Agent,
    Axes,
    LedgerCorrupt,
    LedgerTooNew,
    PauseCommand,
    PauseWithdrawn,
    RequestMissing,
    Routing,
    Scope,
    Turn,
    WithdrawCommand,
    open_ledger,
)
from pauseledger.domain import facts as kinds
from pauseledger.domain.content import Content, ContentAlteredError, ContentUnreadError
from pauseledger.domain.facts import FACTS, Fact
from pauseledger.domain.ids import Identity, candidate_months, month_of
from pauseledger.infrastructure.mapper import NO_PREDECESSOR, FactMapper, Registry

LEDGER = UUID("00000000-0000-4000-8000-00000000abcd")
PAUSE = UUID("004a0000-0000-8000-8000-000000000001")
SIBLING = UUID("004a0000-0000-8000-8000-000000000002")
ATTEMPT = UUID("00000000-0000-4000-8000-000000000003")
AT = datetime(2026, 3, 5, 12, 0, 0, 250, UTC)
SALT = bytes(range(16))
D1, D2 = "1" * 64, "2" * 64
TAG = "0123456789abcdef"


def content(clear: bytes, media_type: str = "application/json", salt: bytes = SALT) -> Content:
    """A content whose salt is known, so that its row is the same on every day."""
    made = Content(media_type=media_type, size=len(clear), digest=hashlib.sha256(salt + clear).hexdigest())
    made.held.body = salt + clear
    return made


def actor(name: str = "maria") -> kinds.ActorRecord:
    return kinds.ActorRecord(
        tag=TAG,
        kind="person",
        assurance="authenticated",
        method="oidc",
        authenticated_at=AT,
        on_behalf_of=TAG,
        who=content(name.encode(), "text/plain; charset=utf-8"),
    )


TOKEN = kinds.TokenRecord(kid="00112233", generation=1, tag=TAG)
CLAIM = kinds.Claim(fence=1, holder=TAG, lease_seconds=60)
SPECIFIC: dict[type[Fact], dict[str, Any]] = {
    kinds.Paused: {
        "session_id": "session-ü",
        "run_id": "run",
        "call_id": "call_1",
        "call": kinds.CallRecord(index=1, origin="provider", tool="ask"),
        "interaction": kinds.InteractionRecord(name="ask_user", revision=1, request_schema=D1, response_schema=D2),
        "request": content(b'{"q":1}'),
        "turn": kinds.TurnRecord(
            format="openai-chat",
            digest=hashlib.sha256(SALT + b"[]").hexdigest(),
            content=content(b"[]"),
            checkpoint=kinds.CheckpointRecord(store="s", locator="l", version="v"),
        ),
        "round": kinds.RoundRecord(
            id=PAUSE,
            lead=PAUSE,
            calls=(
                kinds.RoundCall(call_id="call_0", done=True),
                kinds.RoundCall(call_id="call_1", pause=PAUSE),
                kinds.RoundCall(call_id="call_2", pause=SIBLING),
            ),
        ),
        "opens_at": AT,
        "closes_at": datetime(2026, 3, 12, 12, tzinfo=UTC),
        "on_lapse": kinds.OnLapse(action="answer", response=content(b'"no"')),
        "occurrence": 2,
        "supersedes": SIBLING,
        "generation": 0,
        "routing": kinds.RoutingRecord(
            queue="night", priority=3, groups=(TAG,), assignees=(TAG, TAG), people=content(b"{}")
        ),
        "asked_by": actor("agent"),
        "agent": Agent(name="planner", version="1", model="m"),
        "labels": {"team": "blue"},
    },
    kinds.Answered: {
        "number": 1,
        "origin": "person",
        "by": actor(),
        "submitted_by": actor("desk"),
        "response": content(b'{"a":1}'),
        "decision": "edit",
        "shown": D1,
        "effective": content(b'{"b":2}'),
        "note": content(b"why", "text/plain; charset=utf-8"),
        "token": TOKEN,
    },
    kinds.Consumed: {
        "claim": CLAIM,
        "lead": PAUSE,
        "siblings": (kinds.SiblingEnd(pause=SIBLING, version=2, end="lapsed"),),
        "answers": (2,),
        "response_digest": D1,
        "unstated_axes": ("run",),
        "key": TAG,
        "by": actor(),
        "token": TOKEN,
        "origin": "redeem",
    },
    kinds.Refused: {
        "step": 2,
        "axis": "scope",
        "reason": "scope_mismatch",
        "rule": "a_rule",
        "seen_version": 1,
        "by": actor(),
        "token": TOKEN,
        "presented": kinds.AxesRecord(scope=TAG, session=TAG, run=TAG),
        "at_pointer": "/properties",
    },
    kinds.Continued: {"fence": 1, "late": False, "end": "paused_again", "next": (SIBLING,), "result": D2},
    kinds.Stalled: {"fence": 1, "cause": "error", "error_type": "ValueError", "entered": True},
    kinds.Recovered: {"claim": CLAIM, "from_fence": 1, "because": "lease_ended", "by": actor()},
    kinds.Withdrawn: {
        "reason": "superseded",
        "superseded_by": SIBLING,
        "by": actor(),
        "note": content("größer".encode(), "text/plain; charset=utf-8"),
    },
    kinds.Lapsed: {"closed_at": AT, "leeway_seconds": 5, "answers_standing": (2,)},
    kinds.Reissued: {
        "generation": 2,
        "ends_earlier": True,
        "kid": "00112233",
        "closes_at": AT,
        "by": actor(),
        "reason": "rotated",
    },
    kinds.Abandoned: {"fence": 6, "reason": "exhausted", "by": actor(), "note": content(b"enough", "text/plain")},
}


def fact_of(kind: type[Fact], version: int = 7, predecessor: bytes = NO_PREDECESSOR, **changed: Any) -> Any:
    return kind(
        originator_id=PAUSE,
        originator_version=version,
        predecessor=predecessor,
        ledger=LEDGER,
        pause=PAUSE,
        scope=Scope(tenant_id="acme", namespace=""),
        at=AT,
        attempt=ATTEMPT,
        writer="pauseledger/0.1.0",
        trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        **{**SPECIFIC[kind], **changed},
    )


def row_of(fact: Fact, ledger: UUID = LEDGER) -> StoredEvent:
    return FactMapper(ledger).to_stored_event(fact)


# Read by the written format alone


def cut(state: bytes) -> tuple[bytes, bytes, bytes]:
    """Cut a row into its digest, its header and its segments."""
    assert state[:4] == b"PLF1"
    (length,) = struct.unpack(">I", state[36:40])
    return state[4:36], state[40 : 40 + length], state[40 + length :]


def joined(header: bytes, segments: bytes, digest: bytes = bytes(32)) -> bytes:
    return b"PLF1" + digest + struct.pack(">I", len(header)) + header + segments


def named_contents(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        own = [value] if isinstance(value.get("segment"), int) else []
        return own + [found for name, part in value.items() if name != "labels" for found in named_contents(part)]
    return [found for part in value for found in named_contents(part)] if isinstance(value, list) else []


def segments_of(header: bytes, stored: bytes) -> list[bytes]:
    lengths = [one["stored"] for one in sorted(named_contents(json.loads(header)), key=lambda one: one["segment"])]
    cuts, at = [], 0
    for length in lengths:
        cuts.append(stored[at : at + length])
        at += length
    assert at == len(stored)
    return cuts


def prefixed(*parts: bytes | None) -> bytes:
    return b"".join(b"\xff" * 4 if part is None else struct.pack(">I", len(part)) + part for part in parts)


def digest_of(row: StoredEvent, before: bytes, ledger: UUID = LEDGER) -> bytes:
    _, header, stored = cut(row.state)
    place = (ledger.bytes, row.originator_id.bytes, struct.pack(">Q", row.originator_version), row.topic.encode())
    return hashlib.sha256(prefixed(b"plf/1", *place, before, header, *segments_of(header, stored))).digest()


def resealed(row: StoredEvent, header: bytes, stored: bytes, before: bytes = NO_PREDECESSOR) -> StoredEvent:
    """A row as somebody would leave it who may write the table and knows the format."""
    row = replace(row, state=joined(header, stored))
    return replace(row, state=joined(header, stored, digest_of(row, before)))


# Pinned

COMMON = ["ledger", "pause", "scope", "at", "attempt", "writer", "trace"]
FIELDS = {
    "pause.paused@1": "session_id run_id call_id call interaction request turn round opens_at closes_at on_lapse"
    " occurrence supersedes generation routing asked_by agent labels policy retention",
    "pause.answered@1": "number origin by submitted_by response decision shown effective note token cites policy",
    "pause.consumed@1": "claim lead siblings answers response_digest unstated_axes key by token origin",
    "pause.refused@1": "step axis reason rule seen_version by token presented at_pointer",
    "pause.continued@1": "fence late end next result",
    "pause.stalled@1": "fence cause error_type entered",
    "pause.recovered@1": "claim from_fence because by",
    "pause.withdrawn@1": "reason superseded_by by note",
    "pause.lapsed@1": "closed_at leeway_seconds answers_standing",
    "pause.reissued@1": "generation ends_earlier kid closes_at by reason",
    "pause.abandoned@1": "fence reason by note",
}
PARTS: dict[type[Any], str] = {
    Content: "segment media_type size stored digest comp cipher key",
    kinds.ActorRecord: "tag kind assurance method authenticated_at on_behalf_of who",
    Scope: "tenant_id sub_tenant_id namespace",
    kinds.Claim: "fence holder lease_seconds",
    kinds.TokenRecord: "kid generation tag",
    kinds.Policy: "name revision digest quorum",
    kinds.CallRecord: "index origin tool",
    kinds.InteractionRecord: "name revision request_schema response_schema",
    kinds.TurnRecord: "format digest content checkpoint",
    kinds.CheckpointRecord: "store locator version",
    kinds.RoundRecord: "id lead calls",
    kinds.RoundCall: "call_id pause done",
    kinds.OnLapse: "action response",
    kinds.RoutingRecord: "queue priority groups assignees people",
    Agent: "name version model",
    kinds.AxesRecord: "scope session run call",
    kinds.SiblingEnd: "pause version end",
}
# Spelled out: the header, and SHA-256 of the whole row.
GOLDEN: dict[str, tuple[str, str]] = {
    "pause.paused@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","session_id":"session-ü","run_id":"run",'
            '"call_id":"call_1","call":{"index":1,"origin":"provider","tool":"ask"},"interaction":{"name":"ask_user",'
            '"revision":1,"request_schema":"1111111111111111111111111111111111111111111111111111111111111111",'
            '"response_schema":"2222222222222222222222222222222222222222222222222222222222222222"},'
            '"request":{"segment":0,"media_type":"application/json","size":7,"stored":23,'
            '"digest":"0b6735ccb8ce880d7fc667913c86245252d0e3f392defc53c496ebf720155b37","comp":"none","cipher":"none",'
            '"key":null},"turn":{"format":"openai-chat",'
            '"digest":"ae41b93a2b6b2abd6a32ed7dac7aacfbeb946b20b4f2304eeb704c2c09f8837d","content":{"segment":1,'
            '"media_type":"application/json","size":2,"stored":18,'
            '"digest":"ae41b93a2b6b2abd6a32ed7dac7aacfbeb946b20b4f2304eeb704c2c09f8837d","comp":"none","cipher":"none",'
            '"key":null},"checkpoint":{"store":"s","locator":"l","version":"v"}},'
            '"round":{"id":"004a0000-0000-8000-8000-000000000001","lead":"004a0000-0000-8000-8000-000000000001",'
            '"calls":[{"call_id":"call_0","pause":null,"done":true},{"call_id":"call_1",'
            '"pause":"004a0000-0000-8000-8000-000000000001","done":false},{"call_id":"call_2",'
            '"pause":"004a0000-0000-8000-8000-000000000002","done":false}]},"opens_at":"2026-03-05T12:00:00.000250Z",'
            '"closes_at":"2026-03-12T12:00:00.000000Z","on_lapse":{"action":"answer","response":{"segment":2,'
            '"media_type":"application/json","size":4,"stored":20,'
            '"digest":"3382ebd7c2ce6cf4b3b860de5620cbf33c5de9445e9765c4f5550a5ef13eafd7","comp":"none","cipher":"none",'
            '"key":null}},"occurrence":2,"supersedes":"004a0000-0000-8000-8000-000000000002","generation":0,'
            '"routing":{"queue":"night","priority":3,"groups":["0123456789abcdef"],"assignees":["0123456789abcdef",'
            '"0123456789abcdef"],"people":{"segment":3,"media_type":"application/json","size":2,"stored":18,'
            '"digest":"b5c1f9361eb9fbedd3e628a72d1c8fef46544361fd79fa6781baf6d932b1c3f6","comp":"none","cipher":"none",'
            '"key":null}},"asked_by":{"tag":"0123456789abcdef","kind":"person","assurance":"authenticated",'
            '"method":"oidc","authenticated_at":"2026-03-05T12:00:00.000250Z","on_behalf_of":"0123456789abcdef",'
            '"who":{"segment":4,"media_type":"text/plain; charset=utf-8","size":5,"stored":21,'
            '"digest":"1826854753a6ff8911a4ef4e94cb656906b564be9b9049cb5b32eb4c58fde703","comp":"none","cipher":"none",'
            '"key":null}},"agent":{"name":"planner","version":"1","model":"m"},"labels":{"team":"blue"},"policy":null,'
            '"retention":null}'
        ),
        "1e55569db967546eddaedd2e41efff544c9e0859f033b5fad0e74c995e268565",
    ),
    "pause.answered@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","number":1,"origin":"person",'
            '"by":{"tag":"0123456789abcdef","kind":"person","assurance":"authenticated","method":"oidc",'
            '"authenticated_at":"2026-03-05T12:00:00.000250Z","on_behalf_of":"0123456789abcdef","who":{"segment":0,'
            '"media_type":"text/plain; charset=utf-8","size":5,"stored":21,'
            '"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none","cipher":"none",'
            '"key":null}},"submitted_by":{"tag":"0123456789abcdef","kind":"person","assurance":"authenticated",'
            '"method":"oidc","authenticated_at":"2026-03-05T12:00:00.000250Z","on_behalf_of":"0123456789abcdef",'
            '"who":{"segment":1,"media_type":"text/plain; charset=utf-8","size":4,"stored":20,'
            '"digest":"0fb27e1fb2328b5cc2d351f6c6b64f6c9fcaf66ed2be0d6fd79d12fb72c5b2b2","comp":"none","cipher":"none",'
            '"key":null}},"response":{"segment":2,"media_type":"application/json","size":7,"stored":23,'
            '"digest":"aed8a0ebb5f60a8aa06554873318b8e888584ebddf7878258719930ae328cbb2","comp":"none","cipher":"none",'
            '"key":null},"decision":"edit","shown":"1111111111111111111111111111111111111111111111111111111111111111",'
            '"effective":{"segment":3,"media_type":"application/json","size":7,"stored":23,'
            '"digest":"b280ed6de460e1140ea6c6f534805771e4637ed8be168017100a8a46a10a204b","comp":"none","cipher":"none",'
            '"key":null},"note":{"segment":4,"media_type":"text/plain; charset=utf-8","size":3,"stored":19,'
            '"digest":"d8625652df10ce30137040a391420726b9f36af3e843166dc75d0682d47bce7b","comp":"none","cipher":"none",'
            '"key":null},"token":{"kid":"00112233","generation":1,"tag":"0123456789abcdef"},"cites":[],"policy":null}'
        ),
        "848d1808773b1cef8da6d3aa31cf6ea75fec6e0e675adc1ef710ac4a2f6cd9d5",
    ),
    "pause.consumed@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","claim":{"fence":1,'
            '"holder":"0123456789abcdef","lease_seconds":60},"lead":"004a0000-0000-8000-8000-000000000001",'
            '"siblings":[{"pause":"004a0000-0000-8000-8000-000000000002","version":2,"end":"lapsed"}],"answers":[2],'
            '"response_digest":"1111111111111111111111111111111111111111111111111111111111111111",'
            '"unstated_axes":["run"],"key":"0123456789abcdef","by":{"tag":"0123456789abcdef","kind":"person",'
            '"assurance":"authenticated","method":"oidc","authenticated_at":"2026-03-05T12:00:00.000250Z",'
            '"on_behalf_of":"0123456789abcdef","who":{"segment":0,"media_type":"text/plain; charset=utf-8","size":5,'
            '"stored":21,"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none",'
            '"cipher":"none","key":null}},"token":{"kid":"00112233","generation":1,"tag":"0123456789abcdef"},'
            '"origin":"redeem"}'
        ),
        "99ac86c51a774b4170219dff0733b9a61f4c477dd9c2be987a66215a47c4a2cf",
    ),
    "pause.refused@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","step":2,"axis":"scope",'
            '"reason":"scope_mismatch","rule":"a_rule","seen_version":1,"by":{"tag":"0123456789abcdef","kind":"person",'
            '"assurance":"authenticated","method":"oidc","authenticated_at":"2026-03-05T12:00:00.000250Z",'
            '"on_behalf_of":"0123456789abcdef","who":{"segment":0,"media_type":"text/plain; charset=utf-8","size":5,'
            '"stored":21,"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none",'
            '"cipher":"none","key":null}},"token":{"kid":"00112233","generation":1,"tag":"0123456789abcdef"},'
            '"presented":{"scope":"0123456789abcdef","session":"0123456789abcdef","run":"0123456789abcdef","call":null},'
            '"at_pointer":"/properties"}'
        ),
        "b8c4c1e56e56a2569bb64a0ae9605ccacf6c4e806d8574ce92eae98958bb0d12",
    ),
    "pause.continued@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","fence":1,"late":false,'
            '"end":"paused_again","next":["004a0000-0000-8000-8000-000000000002"],'
            '"result":"2222222222222222222222222222222222222222222222222222222222222222"}'
        ),
        "73e809ed9ae006655b41f8d7d332bd4f707527a0f7d224ef4a47a0080c9eccab",
    ),
    "pause.stalled@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","fence":1,"cause":"error",'
            '"error_type":"ValueError","entered":true}'
        ),
        "ca6ff570e714c36874b1d848cd4aa678d983e4c0e6508abbe75528314e3ae4a5",
    ),
    "pause.recovered@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","claim":{"fence":1,'
            '"holder":"0123456789abcdef","lease_seconds":60},"from_fence":1,"because":"lease_ended",'
            '"by":{"tag":"0123456789abcdef","kind":"person","assurance":"authenticated","method":"oidc",'
            '"authenticated_at":"2026-03-05T12:00:00.000250Z","on_behalf_of":"0123456789abcdef","who":{"segment":0,'
            '"media_type":"text/plain; charset=utf-8","size":5,"stored":21,'
            '"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none","cipher":"none",'
            '"key":null}}}'
        ),
        "1480de348f9931bbf0365c1aa8f83e1d10d7791f00dd167a172f9929fd37829d",
    ),
    "pause.withdrawn@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","reason":"superseded",'
            '"superseded_by":"004a0000-0000-8000-8000-000000000002","by":{"tag":"0123456789abcdef","kind":"person",'
            '"assurance":"authenticated","method":"oidc","authenticated_at":"2026-03-05T12:00:00.000250Z",'
            '"on_behalf_of":"0123456789abcdef","who":{"segment":0,"media_type":"text/plain; charset=utf-8","size":5,'
            '"stored":21,"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none",'
            '"cipher":"none","key":null}},"note":{"segment":1,"media_type":"text/plain; charset=utf-8","size":8,'
            '"stored":24,"digest":"08505aacd15776c91a0526aa1d5c953bec222cb5508fc3e35edd6bb075568f25","comp":"none",'
            '"cipher":"none","key":null}}'
        ),
        "472548d3fbd658c58075266369fbcb08a62fdc0c32dc2b639e84d84e64468a3a",
    ),
    "pause.lapsed@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","closed_at":"2026-03-05T12:00:00.000250Z",'
            '"leeway_seconds":5,"answers_standing":[2]}'
        ),
        "6fc6a7590e532665f111f883303c3e505ee4f57a6cf9e5c8c16edc115a2b98d5",
    ),
    "pause.reissued@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","generation":2,"ends_earlier":true,'
            '"kid":"00112233","closes_at":"2026-03-05T12:00:00.000250Z","by":{"tag":"0123456789abcdef","kind":"person",'
            '"assurance":"authenticated","method":"oidc","authenticated_at":"2026-03-05T12:00:00.000250Z",'
            '"on_behalf_of":"0123456789abcdef","who":{"segment":0,"media_type":"text/plain; charset=utf-8","size":5,'
            '"stored":21,"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none",'
            '"cipher":"none","key":null}},"reason":"rotated"}'
        ),
        "ffdb5068905ead3a0b5b8eccd6747f197bca282a4a1c0adbe2e00aa33455075e",
    ),
    "pause.abandoned@1": (
        (
            '{"ledger":"00000000-0000-4000-8000-00000000abcd","pause":"004a0000-0000-8000-8000-000000000001",'
            '"scope":{"tenant_id":"acme","sub_tenant_id":null,"namespace":""},"at":"2026-03-05T12:00:00.000250Z",'
            '"attempt":"00000000-0000-4000-8000-000000000003","writer":"pauseledger/0.1.0",'
            '"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","fence":6,"reason":"exhausted",'
            '"by":{"tag":"0123456789abcdef","kind":"person","assurance":"authenticated","method":"oidc",'
            '"authenticated_at":"2026-03-05T12:00:00.000250Z","on_behalf_of":"0123456789abcdef","who":{"segment":0,'
            '"media_type":"text/plain; charset=utf-8","size":5,"stored":21,'
            '"digest":"0ae6277de015cc0767da1ac332be3554ef4ed1fc1276234991d9ce0f52ef7a92","comp":"none","cipher":"none",'
            '"key":null}},"note":{"segment":1,"media_type":"text/plain","size":6,"stored":22,'
            '"digest":"254a2725fd6e488e7dc0e7159b79a081481427f5c2ca6e1f22a832c844571724","comp":"none","cipher":"none",'
            '"key":null}}'
        ),
        "551c59db938ba10518eccbbfce81956c1a2e826e06c102fc1ce50026a209d28b",
    ),
}
EVERY = pytest.mark.parametrize("kind", FACTS, ids=lambda kind: kind.__name__)


def test_there_are_eleven_facts_and_no_other_names() -> None:
    assert [kind.topic() for kind in FACTS] == list(FIELDS)


@EVERY
def test_a_header_holds_the_listed_fields_in_their_order(kind: type[Fact]) -> None:
    row = row_of(fact_of(kind))
    header = json.loads(cut(row.state)[1])
    assert list(header) == COMMON + FIELDS[row.topic].split()
    assert list(header) == [name for name, field in kind.model_fields.items() if not field.exclude]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_part_holds_the_listed_fields_in_their_order(part: type[Any]) -> None:
    assert [name for name, field in part.model_fields.items() if not field.exclude] == PARTS[part].split()


@EVERY
def test_a_fixed_fact_is_the_same_bytes_for_good(kind: type[Fact]) -> None:
    row = row_of(fact_of(kind))
    digest, header, stored = cut(row.state)
    pinned_header, pinned_state = GOLDEN[row.topic]
    assert header.decode() == pinned_header
    assert digest == digest_of(row, NO_PREDECESSOR)
    assert hashlib.sha256(row.state).hexdigest() == pinned_state
    assert (row.originator_id, row.originator_version) == (PAUSE, 7)
    bodies = b"".join(one.held.body or b"" for one in contents_in_order(fact_of(kind)))
    assert stored == bodies, "what is short is stored as it is, in the order of its numbers"


def contents_in_order(value: Any) -> list[Content]:
    if isinstance(value, Content):
        return [value]
    if hasattr(type(value), "model_fields"):
        return [found for name in type(value).model_fields for found in contents_in_order(getattr(value, name))]
    return []


@EVERY
def test_a_golden_row_reads_back_as_the_fact_it_was(kind: type[Fact]) -> None:
    fact = fact_of(kind)
    row = row_of(fact)
    read = FactMapper(LEDGER).decode(row, NO_PREDECESSOR)
    assert read.whole
    assert type(read.fact) is kind
    assert read.fact.row_digest == cut(row.state)[0]
    assert read.fact.model_dump(mode="json") == {
        **fact.model_dump(mode="json"),
        **read.fact.model_dump(mode="json", include={name for name in kind.model_fields if hollow(fact, name)}),
    }
    bodies = [(one.media_type, one.clear()) for one in contents_in_order(fact)]
    assert [(one.media_type, one.clear()) for one in contents_in_order(read.fact)] == bodies


def hollow(fact: Fact, name: str) -> bool:
    """Whether a field names contents, whose numbers and stored sizes are known only once written."""
    return bool(contents_in_order(getattr(fact, name)))


@EVERY
def test_what_is_written_has_the_listed_fields_alone_and_what_is_read_may_have_more(kind: type[Fact]) -> None:
    fields = {name: getattr(fact_of(kind), name) for name in kind.model_fields}
    with pytest.raises(TypeError, match="no field noet"):
        kind(**fields, noet="a misspelt note")
    header = {**json.loads(cut(row_of(fact_of(kind)).state)[1]), "newer": {"than": "this"}}
    read = kind.model_validate({**header, "originator_id": PAUSE, "originator_version": 7})
    assert not hasattr(read, "newer")


@EVERY
def test_only_the_header_is_needed_to_follow_and_contents_left_behind_say_so(kind: type[Fact]) -> None:
    _, header, _ = cut(row_of(fact_of(kind)).state)
    read = kind.model_validate({**json.loads(header), "originator_id": PAUSE, "originator_version": 7})
    assert read.at == AT
    for one in contents_in_order(read):
        with pytest.raises(ContentUnreadError):
            one.body()


def test_times_are_rfc_3339_in_utc_with_six_decimals_whatever_zone_they_came_in() -> None:
    eastward = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    header = json.loads(cut(row_of(fact_of(kinds.Lapsed, closed_at=eastward)).state)[1])
    assert header["closed_at"] == "2026-03-05T12:00:00.000250Z"


def test_rows_of_one_append_are_chained_in_their_order() -> None:
    first = fact_of(kinds.Paused, 1)
    then = fact_of(kinds.Stalled, 2, None)
    other = fact_of(kinds.Lapsed, 1).model_copy(update={"originator_id": SIBLING})
    rows = FactMapper(LEDGER).encode([first, other, then])
    heads = [digest for _, digest in rows]
    assert heads[0] == digest_of(rows[0][0], NO_PREDECESSOR)
    assert heads[1] == digest_of(rows[1][0], NO_PREDECESSOR)
    assert heads[2] == digest_of(rows[2][0], heads[0])


def test_a_fact_without_a_predecessor_is_not_written() -> None:
    with pytest.raises(ValueError, match="no predecessor"):
        FactMapper(LEDGER).encode([fact_of(kinds.Lapsed, 2, None)])


# Segments


def test_a_segment_is_compressed_where_that_is_smaller_and_its_frame_tells_its_size() -> None:
    text = b'["' + b"ha" * 5000 + b'"]'
    row = row_of(fact_of(kinds.Answered, response=content(text)))
    _, header, stored = cut(row.state)
    named = json.loads(header)["response"]
    packed = segments_of(header, stored)[named["segment"]]
    assert (named["comp"], named["size"], named["stored"]) == ("zstd", len(text), len(packed))
    assert zstandard.get_frame_parameters(packed).content_size == len(text) + 16
    assert zstandard.ZstdDecompressor().decompress(packed) == SALT + text
    assert named["digest"] == hashlib.sha256(SALT + text).hexdigest()
    assert FactMapper(LEDGER).decode(row, NO_PREDECESSOR).fact.response.clear() == text


@given(st.lists(st.binary(max_size=300), min_size=3, max_size=3), st.binary(min_size=16, max_size=16))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_every_content_comes_back_as_its_very_bytes(clear: list[bytes], salt: bytes) -> None:
    response, effective, note = (content(one, salt=salt) for one in clear)
    row = row_of(fact_of(kinds.Answered, response=response, effective=effective, note=note))
    read = FactMapper(LEDGER).decode(row, NO_PREDECESSOR)
    assert read.whole
    assert [read.fact.response.clear(), read.fact.effective.clear(), read.fact.note.clear()] == clear
    assert digest_of(row, NO_PREDECESSOR) == read.fact.row_digest


def test_contents_are_salted_anew_each_time() -> None:
    one, other = Content.of(b"yes"), Content.of(b"yes")
    assert one.digest != other.digest
    assert (len(one.body()), one.clear()) == (19, b"yes")


def tampered(header_of: Any = None, segments: Any = None, **fields: Any) -> Any:
    """Alter a row of an answer, digest and all, and read it: what the row digest does not find, the content's does."""
    row = row_of(fact_of(kinds.Answered, **fields))
    _, raw, stored = cut(row.state)
    header = json.loads(raw)
    if header_of is not None:
        header_of(header)
    new = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    body = segments(segments_of(raw, stored)) if segments is not None else stored
    state = joined(new, body, cut(row.state)[0])
    return FactMapper(LEDGER).decode(replace(row, state=state), NO_PREDECESSOR)


def test_an_altered_segment_is_found_by_its_row_and_by_its_own_digest() -> None:
    read = tampered(segments=lambda parts: b"".join([*parts[:2], parts[2][:-1] + b"!", *parts[3:]]))
    assert not read.whole
    assert not read.fact.response.intact
    with pytest.raises(ContentAlteredError):
        read.fact.response.clear()
    assert read.fact.effective.intact


def test_swapped_segments_are_found() -> None:
    read = tampered(segments=lambda parts: b"".join([*parts[:2], parts[3], parts[2], *parts[4:]]))
    assert not read.whole
    assert not read.fact.response.intact
    assert not read.fact.effective.intact


def test_swapped_numbers_are_found() -> None:
    def swap(header: dict[str, Any]) -> None:
        mine, other = header["response"], header["effective"]
        mine["segment"], other["segment"] = other["segment"], mine["segment"]

    read = tampered(swap)
    assert not read.whole
    assert not read.fact.response.intact


def frame_row(frame: bytes, size: int, digest: str = D1, comp: str = "zstd") -> StoredEvent:
    """A row whose note is a frame somebody made, with a row digest that fits it."""
    row = row_of(fact_of(kinds.Withdrawn, by=None))
    _, raw, _ = cut(row.state)
    header = json.loads(raw)
    header["note"] |= {"size": size, "stored": len(frame), "digest": digest, "comp": comp}
    return resealed(row, json.dumps(header).encode(), frame)


def bomb(size: int, *, telling: bool) -> bytes:
    packer = zstandard.ZstdCompressor(level=3, write_content_size=telling).compressobj(size=size if telling else -1)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.parametrize(
    ("frame", "size"),
    [
        pytest.param(bomb(64 << 20, telling=True), (64 << 20) - 16, id="a bomb that tells its size"),
        pytest.param(bomb(64 << 20, telling=True), 100, id="a bomb whose header tells another size"),
        pytest.param(bomb(64 << 20, telling=False), 100, id="a bomb that tells no size"),
        pytest.param(zstandard.compress(SALT + b"x" * 99), 100, id="a frame one byte short"),
        pytest.param(zstandard.compress(SALT + b"x" * 100)[:-3], 100, id="a frame cut off"),
        pytest.param(b"no frame at all", 100, id="no frame"),
        pytest.param(b"", 0, id="nothing"),
        pytest.param(zstandard.compress(SALT), -16, id="a size below nothing"),
    ],
)
def test_a_frame_that_lies_is_never_inflated_and_counts_as_altered(frame: bytes, size: int) -> None:
    read = FactMapper(LEDGER).decode(frame_row(frame, size), NO_PREDECESSOR)
    assert read.whole, "the digest of the row was made to fit; the content speaks for itself"
    assert not read.fact.note.intact


def test_what_is_stored_plainly_may_not_be_longer_than_it_says() -> None:
    body = SALT + b"longer"
    row = frame_row(body, 3, hashlib.sha256(body).hexdigest(), "none")
    assert not FactMapper(LEDGER).decode(row, NO_PREDECESSOR).fact.note.intact


# Rows that are not what they should be


def read_state(state: bytes, topic: str = "pause.withdrawn@1") -> Any:
    return FactMapper(LEDGER).decode(StoredEvent(PAUSE, 7, topic, state), NO_PREDECESSOR)


GOOD = row_of(fact_of(kinds.Withdrawn))


def test_a_truncated_row_is_corrupt_wherever_it_was_cut() -> None:
    for length in range(len(GOOD.state)):
        with pytest.raises(LedgerCorrupt):
            read_state(GOOD.state[:length])


@pytest.mark.parametrize(
    "state",
    [
        b"PLF2" + GOOD.state[4:],
        b"plf1" + GOOD.state[4:],
        GOOD.state + b"\0",
        b"\0" + GOOD.state,
        GOOD.state[:36] + b"\xff\xff\xff\xff" + GOOD.state[40:],
        joined(b"[]", b""),
        joined(b"null", b""),
        joined(b"{", b""),
        joined(b'{"a":1,"a":2}', b""),
        joined(b'{"a":NaN}', b""),
        joined(b"\xff\xfe", b""),
        joined(b"{}", b""),
        joined(b"[" * 100_000, b""),
    ],
)
def test_a_row_in_another_shape_is_corrupt(state: bytes) -> None:
    with pytest.raises(LedgerCorrupt):
        read_state(state)


@given(st.integers(0, len(GOOD.state) - 1), st.integers(1, 255))
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_one_changed_byte_anywhere_is_found(at: int, change: int) -> None:
    state = bytearray(GOOD.state)
    state[at] ^= change
    try:
        read = read_state(bytes(state))
    except LedgerCorrupt:
        return
    assert not read.whole


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_any_bytes_at_all_are_corrupt_and_nothing_else(noise: bytes) -> None:
    for state in (noise, b"PLF1" + noise, joined(noise, b""), joined(b"{}", noise)):
        with pytest.raises(LedgerCorrupt):
            read_state(state)


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param(replace(GOOD, originator_id=SIBLING), id="another stream's"),
        pytest.param(replace(GOOD, originator_version=8), id="another version's"),
        pytest.param(replace(GOOD, topic="pause.withdrawn@1"), id="the row itself"),
    ],
)
def test_a_row_moved_to_another_place_is_found(moved: StoredEvent) -> None:
    read = FactMapper(LEDGER).decode(moved, NO_PREDECESSOR)
    assert read.whole is (moved == GOOD)


def test_a_row_under_another_name_is_found() -> None:
    shared = row_of(fact_of(kinds.Abandoned))
    with pytest.raises(LedgerCorrupt):
        FactMapper(LEDGER).decode(replace(shared, topic="pause.recovered@1"), NO_PREDECESSOR)


def test_a_row_after_another_predecessor_is_found() -> None:
    assert not FactMapper(LEDGER).decode(GOOD, b"\1" * 32).whole


def test_a_row_of_another_ledger_is_corrupt() -> None:
    other = UUID("00000000-0000-4000-8000-00000000dead")
    with pytest.raises(LedgerCorrupt, match="another ledger"):
        FactMapper(other).decode(GOOD, NO_PREDECESSOR)


@pytest.mark.parametrize(
    "topic",
    ["pause.paused@2", "pause.unheard@1", "pause.paused", "pause.paused@", "pause.paused@x", "pause.paused@-1", "os:system", "@1",
     "pause.paused@١"],
)  # fmt: skip
def test_an_unknown_name_or_revision_is_too_new_and_is_never_imported(topic: str) -> None:
    with pytest.raises(LedgerTooNew):
        read_state(GOOD.state, topic)


def test_revision_zero_was_never_written() -> None:
    with pytest.raises(LedgerTooNew):
        read_state(GOOD.state, "pause.withdrawn@0")


def test_an_old_revision_is_read_through_its_upcaster() -> None:
    class Newer(kinds.Withdrawn):
        REVISION = 2

    mapper = FactMapper(LEDGER, Registry([Newer], {("pause.withdrawn", 1): lambda old: {**old, "reason": "stopped"}}))
    assert mapper.decode(GOOD, NO_PREDECESSOR).fact.reason == "stopped"
    with pytest.raises(LedgerTooNew):
        FactMapper(LEDGER, Registry([Newer])).decode(GOOD, NO_PREDECESSOR)


def test_a_field_this_version_does_not_know_is_let_pass_and_still_digested() -> None:
    _, raw, stored = cut(GOOD.state)
    header = {**json.loads(raw), "new_field": {"segment": 2, "media_type": "t", "size": 0, "stored": 16, "digest": D1,
                                               "comp": "none", "cipher": "none", "key": None}}  # fmt: skip
    row = resealed(GOOD, json.dumps(header).encode(), stored + SALT)
    read = FactMapper(LEDGER).decode(row, NO_PREDECESSOR)
    assert read.whole
    assert read.fact.note.clear() == "größer".encode()


# The host's words and people's words are never taken for markup

MARKUP = {"segment": 0, "media_type": "x", "size": 1, "stored": 1, "digest": D1, "comp": "zstd", "cipher": "none", "key": None}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        {"segment": "0", "stored": "1", "digest": "d", "comp": "none"},
        {"segment": "0", "stored": "1", "digest": D1, "comp": "zstd", "size": "1", "media_type": "x", "cipher": "none"},
        {"_type_": "datetime_iso", "_data_": "2026"},
        {"ledger": "x", "at": "y", "PLF1": "PLF1"},
    ],
)
def test_labels_may_be_named_as_the_format_names_its_own(words: dict[str, str]) -> None:
    row = row_of(fact_of(kinds.Paused, labels=words))
    read = FactMapper(LEDGER).decode(row, NO_PREDECESSOR)
    assert read.whole
    assert read.fact.labels == words
    assert read.fact.request.clear() == b'{"q":1}'


@pytest.mark.parametrize(
    "odd",
    [
        MARKUP,
        {"_type_": "uuid_hex", "_data_": "00"},
        {"PLF1": "PLF1", "topic": "pause.consumed@1", "originator_id": str(PAUSE)},
        {"__proto__": {}, "$ref": "#", "": None},
    ],
    ids=["a segment", "a transcoding", "a row", "others"],
)
async def test_whatever_people_and_models_write_comes_back_and_is_nothing_else(odd: Any) -> None:
    words = dict.fromkeys(MARKUP, "0")
    calls = [{"id": "PLF1", "type": "function", "function": {"name": json.dumps(odd), "arguments": json.dumps(odd)}}]
    messages = [{"role": "user", "content": "PLF1" + json.dumps(odd), "extra": odd},
                {"role": "assistant", "content": None, "tool_calls": calls, "odd": odd}]  # fmt: skip
    axes = Axes(scope=Scope(tenant_id=json.dumps(odd)), session_id='{"segment":0}', run_id="PLF1", call_id="PLF1")
    request = {"tool": "PLF1", "arguments": {"odd": odd, **odd}, "reason": json.dumps(odd)}
    command = PauseCommand(
        interaction="approval",
        request=request,
        turn=Turn("openai-chat", messages),
        axes=axes,
        labels=words,
        agent=Agent(name="segment", version="stored", model="PLF1"),
        routing=Routing(queue="segment", groups=["segment"], assignees=[json.dumps(odd)]),
        asked_by=Actor(json.dumps(odd)),
    )
    async with open_ledger("memory:") as ledger:
        receipt = await ledger.capability.pause(command)
        again = await ledger.capability.pause(command)
        assert again.existing
        edit = {"decision": "edit", "arguments": {"odd": odd}}
        turn = await ledger.redeem(receipt.token, edit, axes=axes, by=Actor(json.dumps(odd)))
        assert list(turn.history) == messages
        assert turn.dispatch[0].arguments == {"odd": odd}
        assert turn.outcome.request == request
        told = await ledger.story(receipt.pause_id)
        assert [fact.topic() for fact in told] == ["pause.paused@1", "pause.answered@1", "pause.consumed@1"]


# Ids and tags

IDENTITY_KEY = bytes(range(32))
IDENTITY = Identity(LEDGER, IDENTITY_KEY)


def mac(*parts: bytes | None) -> bytes:
    return hmac.new(IDENTITY_KEY, prefixed(*parts), hashlib.sha256).digest()


def uuid8(month: int, rest: bytes) -> UUID:
    """RFC 9562, section 5.8: everything is the maker's own but the version and the variant."""
    number = int.from_bytes(struct.pack(">H", month) + rest[:14], "big")
    number = number & ~(0xF << 76) | 0x8 << 76
    return UUID(int=number & ~(0b11 << 62) | 0b10 << 62)


@pytest.mark.parametrize(
    ("moment", "month"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), 0),
        (datetime(2020, 12, 31, 23, 59, tzinfo=UTC), 11),
        (datetime(2026, 3, 5, tzinfo=UTC), 74),
        (datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=2))), 73),
    ],
)
def test_months_are_counted_from_2020_in_utc(moment: datetime, month: int) -> None:
    assert month_of(moment) == month


def test_on_a_months_first_day_the_month_before_is_looked_up_too() -> None:
    first = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    assert candidate_months(first, given=False) == (74, 73)
    assert candidate_months(first, given=True) == (74,)
    assert candidate_months(first + timedelta(days=1), given=False) == (74,)
    assert candidate_months(datetime(2026, 1, 1, tzinfo=UTC), given=False) == (72, 71)


@pytest.mark.parametrize("parts", [("acme", None, None), ("acme", "", None), ("acme", None, ""), ("ä", "b", "c")])
def test_a_leads_id_is_derived_as_written(parts: tuple[str, str | None, str | None]) -> None:
    scope = Scope(tenant_id=parts[0], sub_tenant_id=parts[1], namespace=parts[2])
    got = IDENTITY.lead(74, scope, session_id="s", run_id="r", turn_key=b"k" * 32, occurrence=3)
    raw = [None if part is None else part.encode() for part in parts]
    assert got == uuid8(74, mac(b"lead", *raw, b"s", b"r", b"k" * 32, struct.pack(">I", 3)))
    assert (got.version, got.variant) == (8, "specified in RFC 4122")
    assert int.from_bytes(got.bytes[:2], "big") == 74


def test_ids_of_siblings_and_refusal_streams_are_derived_as_written() -> None:
    assert IDENTITY.sibling(PAUSE, "@1") == uuid8(74, mac(b"sibling", PAUSE.bytes, b"@1"))
    assert IDENTITY.refusals(PAUSE) == uuid8(74, mac(b"refusals", PAUSE.bytes))


def test_a_tag_is_sixteen_hex_of_an_hmac() -> None:
    assert IDENTITY.tag("actor", "maria") == mac(b"actor", b"maria").hex()[:16]


def test_parts_never_run_into_each_other() -> None:
    tags = {
        IDENTITY.tag("scope", "ab", "c"),
        IDENTITY.tag("scope", "a", "bc"),
        IDENTITY.tag("scope", "abc"),
        IDENTITY.tag("scope", "abc", None),
        IDENTITY.tag("scope", "abc", ""),
        IDENTITY.tag("session", "abc"),
    }
    assert len(tags) == 6


async def test_a_stored_pause_has_the_id_its_round_says_and_rows_that_anybody_can_check() -> None:
    calls = [{"id": one, "type": "function", "function": {"name": "ask", "arguments": "{}"}} for one in ("a", "b")]
    turn = json.dumps([{"role": "assistant", "content": None, "tool_calls": calls}]).encode()
    request = {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]}
    axes = Axes(scope=Scope(tenant_id="acme"), session_id="s", run_id="r", call_id="a")
    commands = [
        PauseCommand(
            interaction=ASK_USER,
            request=request,
            turn=Turn("openai-chat", turn),
            axes=axes.model_copy(update={"call_id": call}),
            run_started=datetime(2026, 3, 5, tzinfo=UTC),
        )
        for call in ("a", "b")
    ]
    async with open_ledger("memory:") as ledger:
        identity = ledger.recorder.identity()
        one, other = await ledger.capability.pause_round(commands)
        key = identity.identity_key
        turn_key = hashlib.sha256(turn).digest()
        said = prefixed(b"lead", b"acme", None, None, b"s", b"r", turn_key, bytes(4))
        assert one.pause_id == uuid8(74, hmac.new(key, said, hashlib.sha256).digest())
        said = prefixed(b"sibling", one.pause_id.bytes, b"b")
        assert other.pause_id == uuid8(74, hmac.new(key, said, hashlib.sha256).digest())
        for row in ledger.recorder.walk():
            digest, header, _ = cut(bytes(row.state))
            assert digest == digest_of(row, bytes(32), identity.ledger_id)
            assert b"Which" not in header


async def test_a_stream_of_another_kind_is_no_pause() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "ask", "arguments": "{}"}}]
    request = {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]}
    axes = Axes(scope=Scope(tenant_id="acme"), session_id="s", run_id="r", call_id="c")
    turn = Turn("openai-chat", [{"role": "assistant", "content": None, "tool_calls": calls}])
    async with open_ledger("memory:") as ledger:
        receipt = await ledger.capability.pause(
            PauseCommand(interaction=ASK_USER, request=request, turn=turn, axes=axes)
        )
        await ledger.capability.withdraw(WithdrawCommand(pause_id=receipt.pause_id, axes=axes))
        with pytest.raises(PauseWithdrawn):
            await ledger.redeem(receipt.token, {"answers": [{"question_id": "q1", "selections": ["A"]}]}, axes=axes)
        identity = ledger.recorder.identity()
        refusals = Identity(identity.ledger_id, identity.identity_key).refusals(receipt.pause_id)
        with pytest.raises(RequestMissing):
            await ledger.operator(Actor("root")).withdraw(WithdrawCommand(pause_id=refusals))


async def test_a_pause_that_left_its_round_is_corrupt() -> None:
    """Somebody who may write the table has a sibling's row name a round in which it is not."""
    calls = [{"id": one, "type": "function", "function": {"name": "ask", "arguments": "{}"}} for one in ("a", "b")]
    turn = Turn("openai-chat", [{"role": "assistant", "content": None, "tool_calls": calls}])
    request = {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]}
    axes = [Axes(scope=Scope(tenant_id="acme"), session_id="s", run_id="r", call_id=call) for call in ("a", "b")]
    async with open_ledger("memory:") as ledger:
        _, sibling = await ledger.capability.pause_round(
            [PauseCommand(interaction=ASK_USER, request=request, turn=turn, axes=one) for one in axes]
        )
        rows = ledger.recorder._stored_events
        at = next(at for at, row in enumerate(rows) if row.originator_id == sibling.pause_id)
        digest, raw, stored = cut(rows[at].state)
        header = json.loads(raw)
        header["round"]["calls"] = header["round"]["calls"][:1]
        rows[at] = replace(rows[at], state=joined(json.dumps(header).encode(), stored, digest))
        with pytest.raises(LedgerCorrupt):
            await ledger.redeem(sibling.token, STORED, axes=axes[1])
