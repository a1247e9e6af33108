"""Each rule that check holds rows, streams and rounds to: broken alone, with every digest made anew, it is told."""

import asyncio
import hashlib
import json
import sqlite3
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest
from pauseledger import Actor, Policy, QuorumOpen, RecoverCommand, Refusal, RoundOpen, WithdrawCommand, continuing
from pauseledger.domain.commands import PresentCommand
from pauseledger.domain.ids import Identity
from pauseledger.infrastructure.checking import check_ledger
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.raw_check import faults, read
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import Stage, ask, asked, asked_round, axes, round_of, turn

ANNE, BOB = Actor("anne"), Actor("bob")
#: In clear: the file's own key wraps nothing, so that a forger can write every byte of a row.
IN_CLEAR = {
    "format": "pauseledger-keys/1",
    "keys": [{"kid": "01234567", "secret": "A" * 43, "state": "mints", "made_at": None, "stopped_minting_at": None}],
}


async def lead(stage):
    """Tell one story of each kind, and name their streams."""
    async with stage.ledger() as ledger:
        lone = await asked(ledger, turn=turn("call_1", said="Hello, hello. " * 40))
        with pytest.raises(Refusal):
            await lone.redeem(axes=axes(session_id="another"))
        async with continuing(await lone.redeem()):
            pass
        for _ in range(2):
            with pytest.raises(Refusal):
                await lone.redeem(axes=axes(session_id="another"))
        held = await asked_round(ledger, *round_of("c0", "c1", "c2", idempotency_key="round"))
        for one in held[:-1]:
            with pytest.raises(RoundOpen):
                await one.redeem()
        async with continuing(await held[-1].redeem()):
            pass
        still_open, _ = await asked_round(ledger, *round_of("c0", "c1", idempotency_key="open"))
        with pytest.raises(RoundOpen):
            await still_open.redeem()
        left = await asked_round(ledger, *round_of("c0", "c1", idempotency_key="left"))
        with pytest.raises(RoundOpen):
            await left[0].redeem()
        await ledger.capability.withdraw(WithdrawCommand(left[0].pause_id, axes=left[0].axes))
        async with continuing(await left[1].redeem()):
            pass
        labels = {"segment": "a", "stored": "b", "digest": "c", "comp": "d"}
        taken = await asked(ledger, idempotency_key="taken", labels=labels)
        with pytest.raises(RuntimeError):
            async with continuing(await taken.redeem()):
                raise RuntimeError
        async with continuing(await ledger.capability.recover(RecoverCommand(taken.pause_id, axes=taken.axes))):
            pass
        await ledger.capability.govern("ask_user", Policy(name="two", quorum=2), by=Actor("carla"))
        agreed = await asked(ledger, ask(idempotency_key="agreed"))
        show = PresentCommand(agreed.pause_id, axes=agreed.axes, to=ANNE, rendering="Whose?")
        await ledger.capability.presented(show)
        with pytest.raises(QuorumOpen):
            await agreed.redeem(answered_by=ANNE)
        async with continuing(await agreed.redeem(answered_by=BOB)):
            pass
    names = {"lone": lone.pause_id, "taken": taken.pause_id, "agreed": agreed.pause_id}
    return names | {name: one.pause_id for name, one in zip(("lead", "second", "third"), held, strict=True)}


@dataclass
class Row:
    """A row in a forger's hands: its digest is made anew, unless its whole state is given."""

    position: int
    stream: UUID
    version: int
    topic: str
    header: dict
    rest: bytes
    state: bytes | None = None

    @property
    def name(self):
        return self.topic.partition("@")[0].removeprefix("pause.")

    def digested(self, ledger, before):
        header = json.dumps(self.header, separators=(",", ":")).encode()
        segments, start = [], 0
        for content in sorted(contents(self.header), key=lambda one: one["segment"]):
            segments.append(self.rest[start : start + content["stored"]])
            start += content["stored"]
        parts = (ledger.bytes, self.stream.bytes, self.version.to_bytes(8, "big"), self.topic.encode(), before, header)
        digest = hashlib.sha256()
        for part in (b"plf/1", *parts, *segments):
            digest.update(len(part).to_bytes(4, "big") + part)
        return b"PLF1" + digest.digest() + len(header).to_bytes(4, "big") + header + self.rest


def contents(value):
    if isinstance(value, dict):
        if {"segment", "stored", "digest", "comp"} <= value.keys() and isinstance(value["segment"], int):
            return [value]
        return [one for part in value.values() for one in contents(part)]
    return [one for part in value for one in contents(part)] if isinstance(value, list) else []


class Ledger:
    """A whole ledger, and whatever a forger makes of it."""

    def __init__(self, url, names):
        self.url, self.names = url, names
        raw = read(url)
        self.ledger_id, self.whole = raw.ledger_id, []
        for row in raw.rows:
            rest = row.state[40 + int.from_bytes(row.state[36:40], "big") :]
            self.whole.append(Row(row.position, row.stream, row.version, row.topic, row.header, rest))
        self.names |= {row.name: row.stream for row in self.whole if row.stream not in self.names.values()}
        self.postgres = url.startswith("postgres")
        self.at = (
            psycopg.connect(url, options="-c search_path=pauseledger") if self.postgres else sqlite3.connect(url[10:])
        )
        self.recorder = PostgresRecorder(url) if self.postgres else SQLiteRecorder(url[10:])
        held = self.recorder.settings()
        self.settings = held.ledger_id, held.identity_key
        if self.postgres:
            self.do("ALTER TABLE stored_events DISABLE TRIGGER ALL")
        else:
            for (name,) in self.do("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                self.do(f"DROP TRIGGER {name}")

    def do(self, statement, *values):
        done = self.at.execute(statement, values)
        found = done.fetchall() if done.description else []
        self.at.commit()
        return found

    def close(self):
        self.at.close()
        self.recorder.close()

    def write(self, rows):
        streams = defaultdict(list)
        for row in sorted(rows, key=lambda one: one.version):
            streams[row.stream].append(row)
        told = []
        for stream, its in streams.items():
            before = bytes(32)
            for row in its:
                state = row.state or row.digested(self.ledger_id, before)
                told.append((row.position, str(stream) if self.postgres else stream.hex, row.version, row.topic, state))
                before = state[4:36]
        cursor = self.at.cursor()
        cursor.execute("DELETE FROM stored_events")
        columns = "originator_id, originator_version, topic, state"
        if self.postgres:
            with cursor.copy(f"COPY stored_events (notification_id, {columns}) FROM STDIN") as copy:
                for row in sorted(told):
                    copy.write_row(row)
        else:
            cursor.executemany(f"INSERT INTO stored_events (rowid, {columns}) VALUES (?, ?, ?, ?, ?)", sorted(told))
        self.at.commit()

    def says(self):
        faults = check_ledger(self.recorder, None).faults
        return {fault.says for fault in faults if fault.part in {"row", "stream", "round"}}


class Forger:
    """The rows of a ledger, by the names of their streams."""

    def __init__(self, ledger):
        self.names, self.rows = dict(ledger.names), deepcopy(ledger.whole)
        self.identity = Identity(*ledger.settings)

    def stream(self, name):
        return sorted((row for row in self.rows if row.stream == self.names[name]), key=lambda row: row.version)

    def row(self, stream, name, which=0):
        return [row for row in self.stream(stream) if row.name == name][which]

    def header(self, *row):
        return self.row(*row).header

    def remove(self, *gone, renumber=True):
        """Take rows out, and let those behind them move up."""
        for row in gone:
            self.rows = [one for one in self.rows if one is not row]
            for one in self.rows:
                if renumber and one.stream == row.stream and one.version > row.version:
                    one.version -= 1

    def again(self, row, **header):
        """Write a row once more, at the end of its stream and of the log."""
        last = [one for one in self.rows if one.stream == row.stream][-1]
        copy = deepcopy(row)
        copy.position, copy.version = max(one.position for one in self.rows) + 1, last.version + 1
        copy.header |= {"at": last.header["at"], **header}
        self.rows.append(copy)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def ledger(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger")
    url = f"sqlite:///{folder / 'ledger.db'}"
    if request.param == "postgresql":
        pg = request.getfixturevalue("pg")
        url = pg.dsn(pg.fresh_database(request.getfixturevalue("pg_template")))
    (folder / "keys").mkdir(mode=0o700)
    (folder / "keys" / "keys.json").touch(mode=0o600)
    (folder / "keys" / "keys.json").write_text(json.dumps(IN_CLEAR))
    made = Ledger(url, asyncio.run(lead(Stage(url, folder / "keys"))))
    yield made
    made.close()


MISSING = "version 2 of its stream is missing"
ORDER = "its position is not behind that of the row before it in its stream"
NO_ROW = "it is not in the format PLF1"
SEGMENTS = "its segments are not those that its header names"
DIGEST = "its digest is another one: the row, or the one before it, is not what was written"
TIME = "its time is before that of the row before it in its stream"
ROW_LACKS, STREAM_LACKS = "its header lacks what its fact needs", "one of its facts lacks what such a fact needs"
ROUND_LACKS = "what consumed its round lacks what such a fact needs"
BEGINS, ANOTHER_PAUSE = "it does not begin with its pause", "it holds facts of another pause"
IDENTITY = "its id is not what the ledger's identity key makes of its pause"
ROUND, LEAD = "its round is none, or does not name it", "its lead is of another round"
SIBLINGS = "it names its siblings as they do not stand"
ANSWERS, RESPONSE = (
    "it names another answer than its stream holds",
    "it was consumed with another answer than its stream holds",
)


def content_of(segment):
    return f"its segment {segment} is not what was digested"


def fences(*told):
    return f"its fences are {list(told)}, and not one after the other"


FORGERIES = []


def tells(*says):
    """Register a forgery, and what exactly it has to be told as."""

    def keep(forge):
        FORGERIES.append(pytest.param(forge, set(says), id=forge.__name__))
        return forge

    return keep


# Rows


@tells(MISSING)
def a_row_left_out(forger):
    forger.remove(forger.row("lone", "refused"), renumber=False)


@tells(ORDER)
def two_rows_in_another_order(forger):
    one, other = forger.stream("lone")[1:3]
    one.position, other.position = other.position, one.position


@tells(NO_ROW)
def another_format(forger):
    row = forger.row("lone", "refused")
    before = forger.row("lone", "paused").digested(UUID(row.header["ledger"]), bytes(32))[4:36]
    row.state = b"PLF2" + row.digested(UUID(row.header["ledger"]), before)[4:]


@tells(NO_ROW)
def a_header_that_is_no_object(forger):
    forger.row("lone", "refused").header = [1]


@tells(NO_ROW)
def a_header_longer_than_the_row(forger):
    forger.row("lone", "refused").state = b"PLF1" + bytes(32) + (100).to_bytes(4, "big") + b"{}"


@tells(SEGMENTS)
def segments_of_other_numbers(forger):
    for content in contents(forger.header("lone", "paused")):
        content["segment"] += 1


@tells(SEGMENTS)
def bytes_behind_the_segments(forger):
    forger.row("lone", "paused").rest += b"x"


@tells(content_of(0))
def another_text(forger):
    row = forger.row("lone", "answered")
    row.rest = row.rest[:-1] + bytes([row.rest[-1] ^ 1])


@tells(content_of(1))
def another_text_in_a_frame(forger):
    row = forger.row("lone", "paused")
    first, packed = sorted(contents(row.header), key=lambda one: one["segment"])[:2]
    assert packed["comp"] == "zstd"
    at = first["stored"] + packed["stored"] // 2
    row.rest = row.rest[:at] + bytes([row.rest[at] ^ 1]) + row.rest[at + 1 :]


@tells(DIGEST)
def another_topic_under_the_same_digest(forger):
    row = forger.row("lone", "paused")
    row.state, row.topic = row.digested(UUID(row.header["ledger"]), bytes(32)), "pause.paused@2"


@tells(DIGEST)
def a_row_that_follows_another_one(forger):
    row = forger.row("lone", "refused")
    row.state = row.digested(UUID(row.header["ledger"]), bytes(32))


@tells("it is of another ledger")
def a_row_of_another_ledger(forger):
    forger.header("lone", "answered")["ledger"] = str(uuid4())


@tells(TIME)
def time_that_goes_back(forger):
    forger.header("lone", "answered")["at"] = "2020-01-01T00:00:00.000000Z"


@tells(TIME)
def no_time(forger):
    del forger.header("lone", "answered")["at"]


@tells(ROW_LACKS)
def a_policy_of_no_number(forger):
    del forger.header("agreed", "answered")["policy"]["quorum"]


@tells(ROW_LACKS)
def a_policy_of_no_end(forger):
    forger.header("agreed", "answered", 1)["policy"]["quorum"] = float("inf")


@tells("its stream's id is none")
def a_row_of_no_stream(forger):
    forger.row("policy.changed", "policy.changed").stream = UUID(int=0)


@tells(SEGMENTS, DIGEST)
def a_segment_of_no_length(forger):
    row = forger.row("lone", "answered")
    row.header["response"]["stored"] = "all"
    header = json.dumps(row.header).encode()
    row.state = b"PLF1" + bytes(32) + len(header).to_bytes(4, "big") + header + row.rest


@tells()
def a_text_in_a_list(forger):
    """No fact has one yet; a row is whole wherever its texts are named."""
    row = forger.row("lone", "refused")
    said = bytes(16) + b"said"
    digest, number = hashlib.sha256(said).hexdigest(), len(contents(row.header))
    content = {"segment": number, "media_type": "text/plain", "size": 4, "stored": 20, "digest": digest}
    row.header["more"], row.rest = [[{"one": content | {"comp": "none", "cipher": "none"}}]], row.rest + said


# Streams


@tells("it holds 2 times pause.paused")
def paused_twice(forger):
    forger.again(forger.row("lone", "paused"))


@tells("it holds 2 times pause.answered")
def answered_twice(forger):
    forger.again(forger.row("lone", "answered"))


@tells("it holds 2 times pause.answered")
def answered_by_enough_twice(forger):
    answer = forger.row("agreed", "answered", 1)
    forger.again(answer, by={**answer.header["by"], "tag": "0" * 16})


@tells("it holds 2 times pause.consumed")
def consumed_twice(forger):
    forger.again(forger.row("lone", "consumed"), claim=None)


@tells("it holds 2 times pause.continued")
def continued_twice(forger):
    forger.again(forger.row("lone", "continued"))


@tells("one person's answers count twice")
def one_person_for_two(forger):
    forger.header("agreed", "answered", 1)["by"]["tag"] = forger.header("agreed", "answered")["by"]["tag"]


@tells(BEGINS)
def a_stream_without_its_pause(forger):
    forger.remove(forger.row("lone", "paused"))


@tells(BEGINS)
def refusals_beside_another_fact(forger):
    forger.row("refused", "refused", 1).topic = "pause.stalled@1"


@tells(ANOTHER_PAUSE)
def a_fact_of_another_pause(forger):
    forger.header("lone", "answered")["pause"] = str(forger.names["taken"])


@tells(ANOTHER_PAUSE)
def all_facts_of_another_pause(forger):
    for row in forger.stream("lone"):
        row.header["pause"] = str(forger.names["taken"])


@tells(ANOTHER_PAUSE)
def a_presentation_of_another_pause(forger):
    forger.again(forger.row("presented", "presented"), pause=str(forger.names["taken"]))


@tells(fences(2))
def a_first_fence_of_another_number(forger):
    forger.header("lone", "consumed")["claim"]["fence"] = 2


@tells(fences(1, 3))
def a_fence_left_out(forger):
    forger.header("taken", "recovered")["claim"]["fence"] = 3


@tells(fences(1, 1))
def a_fence_given_twice(forger):
    forger.header("taken", "recovered")["claim"]["fence"] = 1


@tells(fences(None, 2))
def a_claim_without_a_fence(forger):
    del forger.header("taken", "consumed")["claim"]["fence"]


@tells(STREAM_LACKS)
def a_person_without_a_tag(forger):
    del forger.header("agreed", "answered")["by"]["tag"]


@tells(IDENTITY)
def refusals_at_another_id(forger):
    other = uuid4()
    for row in forger.stream("refused"):
        row.stream = other


@tells(IDENTITY)
def a_sibling_at_another_id(forger):
    was, now = forger.names["second"], uuid4()
    for row in forger.rows:
        row.stream = now if row.stream == was else row.stream
        row.header = json.loads(json.dumps(row.header).replace(str(was), str(now)))


# Rounds


@tells("its lead is not there")
def a_round_without_its_lead(forger):
    forger.remove(*forger.stream("lead"))


@tells("its round names it, and it is not there")
def a_round_without_a_sibling(forger):
    forger.remove(*forger.stream("third"))


@tells("half a round: 2 of its 3 streams are consumed")
def half_a_round(forger):
    forger.remove(forger.row("third", "consumed"))


@tells("half a round: 1 of its 3 streams are consumed")
def a_third_of_a_round(forger):
    forger.remove(forger.row("second", "consumed"), forger.row("third", "consumed"))


@tells("several attempts consumed its round")
def two_attempts(forger):
    forger.header("third", "consumed")["attempt"] = str(uuid4())


@tells(SIBLINGS)
def a_sibling_at_another_version(forger):
    forger.header("second", "consumed")["siblings"][0]["version"] += 1


@tells(SIBLINGS)
def a_sibling_that_is_not_named(forger):
    forger.header("second", "consumed")["siblings"].pop()


@tells(SIBLINGS)
def a_sibling_of_a_lone_pause(forger):
    forger.header("lone", "consumed")["siblings"] = forger.header("second", "consumed")["siblings"]


@tells(ANSWERS)
def no_answer_named(forger):
    forger.header("lone", "consumed")["answers"] = []


@tells(ANSWERS)
def no_answer_named_in_a_round(forger):
    forger.header("third", "consumed")["answers"] = []


@tells(ANSWERS)
def another_row_named_as_the_answer(forger):
    forger.header("lone", "consumed")["answers"][0] -= 1


@tells(ANSWERS)
def another_row_named_beside_the_answer(forger):
    forger.header("lone", "consumed")["answers"].append(1)


@tells(ANSWERS)
def an_answer_named_that_is_gone(forger):
    forger.remove(forger.row("lone", "answered"))


@tells(ANSWERS)
def an_answer_named_twice(forger):
    forger.header("lone", "consumed")["answers"] *= 2


@tells(ANSWERS)
def one_of_two_answers_named(forger):
    forger.header("agreed", "consumed")["answers"].pop(0)


@tells(ANSWERS)
def answers_in_another_order(forger):
    forger.header("agreed", "consumed")["answers"].reverse()


@tells(ANSWERS)
def too_few_answers(forger):
    forger.remove(forger.row("agreed", "answered", 1))
    forger.header("agreed", "consumed")["answers"].pop()
    # Consumed by the one answer that is left, of which the policy wants two.


@tells(RESPONSE)
def another_answer(forger):
    forger.header("lone", "consumed")["response_digest"] = "0" * 64


@tells(RESPONSE)
def another_answer_in_a_round(forger):
    forger.header("third", "consumed")["response_digest"] = "0" * 64


@tells(ROUND_LACKS)
def consumed_without_a_word_of_siblings(forger):
    del forger.header("third", "consumed")["siblings"]


@tells(ROUND_LACKS)
def a_lone_pause_consumed_without_a_word_of_answers(forger):
    del forger.header("lone", "consumed")["answers"]


@tells(content_of(0))
def another_text_in_a_round(forger):
    """Of a row that is not what was written, nothing is taken for true, nor missed."""
    row = forger.row("third", "answered")
    row.rest = row.rest[:-1] + bytes([row.rest[-1] ^ 1])


@tells(content_of(0))
def another_text_at_the_lead_of_a_round(forger):
    row = forger.row("lead", "answered")
    row.rest = row.rest[:-1] + bytes([row.rest[-1] ^ 1])


@tells(ROUND)
def a_pause_without_a_round(forger):
    forger.header("lone", "paused")["round"] = None


@tells(ROUND)
def a_round_without_its_calls(forger):
    del forger.header("lone", "paused")["round"]["calls"]


@tells(ROUND, LEAD)
def a_round_of_no_ids(forger):
    forger.header("lead", "paused")["round"]["calls"][1]["pause"] = "nobody"


@tells(ROUND)
def a_round_of_nobody(forger):
    forger.header("lone", "paused")["round"]["calls"][0]["pause"] = None


@tells(ROUND, LEAD)
def a_round_that_leaves_its_own_pause_out(forger):
    forger.header("lead", "paused")["round"]["calls"].pop(0)


@tells(ROUND, IDENTITY)
def a_round_of_numbers(forger):
    forger.header("second", "paused")["round"]["lead"] = 5


@tells(LEAD)
def a_sibling_of_a_round_that_does_not_name_it(forger):
    for row in forger.stream("lead"), forger.stream("second"):
        row[0].header["round"]["calls"].pop()
    for name in ("lead", "second"):
        forger.header(name, "consumed")["siblings"].pop()


@tells(LEAD)
def a_pause_at_the_side_of_a_lone_one(forger):
    """Of the right id, so that the ledger's identity key has nothing to say."""
    was, beside = forger.names["second"], forger.identity.sibling(forger.names["lone"], "c1")
    forger.remove(*forger.stream("lead"), *forger.stream("third"))
    told = {"id": str(forger.names["lone"]), "lead": str(forger.names["lone"])}
    for row in forger.stream("second"):
        row.stream = beside
        row.header = json.loads(json.dumps(row.header).replace(str(was), str(beside)))
    forger.names["second"] = beside
    held = forger.header("second", "paused")
    calls = [call for call in held["round"]["calls"] if call["pause"] == str(beside)]
    held["round"] |= {**told, "calls": calls}


def test_a_whole_ledger_breaks_no_rule(ledger):
    ledger.write(ledger.whole)
    assert ledger.says() == set()


@pytest.mark.parametrize(("forge", "says"), FORGERIES)
def test_a_rule_that_is_broken_alone_is_told_and_nothing_else(ledger, forge, says):
    forger = Forger(ledger)
    forge(forger)
    ledger.write(forger.rows)
    assert ledger.says() == says
    assert forge in BEYOND_THE_OTHER or found_by_the_other(ledger.url) == bool(says)


#: What needs the ledger's identity key, and what names nobody.
BEYOND_THE_OTHER = {a_row_of_no_stream, a_person_without_a_tag, refusals_at_another_id, a_sibling_at_another_id}


def found_by_the_other(url):
    """Ask the other reader of rows, which shares no line with check; it raises over what no fact has."""
    try:
        return bool(faults(read(url)))
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError):
        return True
