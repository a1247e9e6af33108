"""Keys: drawn once, promoted, retired only when nobody needs them, and never shown."""

import base64
import json
import multiprocessing
import os
import stat
import traceback
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pauseledger.domain.errors import InteractionConfigurationError
from pauseledger.infrastructure import keys as keys_module
from pauseledger.infrastructure.keys import (
    MISS_SECONDS,
    REREAD_SECONDS,
    SETTLES,
    Key,
    KeyFile,
    KeyLife,
    KeyRing,
)

SECRET = bytes(range(32))
TEXT = base64.urlsafe_b64encode(SECRET).decode()
OTHER = base64.urlsafe_b64encode(bytes(range(32, 64))).decode()


def key(kid: str, state: str = "opens") -> Key:
    return Key(kid=kid, secret=SECRET, state=state)


def told(error: BaseException) -> str:
    """Everything a log could get out of an error, its whole chain included."""
    chain, at = [], error
    while at is not None:
        chain.append(at)
        at = at.__cause__ or at.__context__
    return "".join(f"{one!r}{one}{one.__dict__}" for one in chain) + "".join(traceback.format_exception(error))


def nobody(_before: datetime) -> list[UUID]:
    return []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "keys"


@pytest.fixture
def file(directory: Path) -> KeyFile:
    made = KeyFile(directory)
    made.create()
    return made


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(keys_module, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def later(monkeypatch):
    def pass_by(time: timedelta) -> None:
        then = datetime.now(UTC) + time
        monkeypatch.setattr(keys_module, "_now", lambda: then)

    return pass_by


# From the environment.


def test_the_first_key_of_the_environment_mints_and_all_open():
    ring = KeyRing.from_environment(f"0a0a0a0a:{TEXT},0b0b0b0b:{OTHER.rstrip('=')}")
    assert ring.minting == Key(kid="0a0a0a0a", secret=SECRET, state="mints")
    assert ring.by_kid("0b0b0b0b") == Key(kid="0b0b0b0b", secret=bytes(range(32, 64)), state="opens")
    assert ring.by_kid(bytes.fromhex("0b0b0b0b")) is ring.by_kid("0b0b0b0b")
    assert ring.by_kid("0c0c0c0c") is None
    assert len(ring) == 2


def test_white_space_around_the_entries_is_allowed():
    assert len(KeyRing.from_environment(f" 0a0a0a0a:{TEXT} ,\n 0b0b0b0b:{OTHER}\n")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        TEXT,
        f":{TEXT}",
        f"0a0a0a0a{TEXT}",
        "0a0a0a0a:",
        f"0a0a0a0a:{TEXT},",
        f"0a0a0a0:{TEXT}",
        f"0A0A0A0A:{TEXT}",
        f"0a0a0a0a\n:{TEXT}",
        f"../../..:{TEXT}",
        f"0a0a0a0a:{TEXT},0a0a0a0a:{OTHER}",
        f"0a0a0a0a:{TEXT[:-4]}",
        f"0a0a0a0a:{TEXT}=",
        f"0a0a0a0a:{TEXT.rstrip('=')}A",
        f"0a0a0a0a:{TEXT[:20]}!{TEXT[20:]}",
        f"0a0a0a0a:{TEXT[:20]} {TEXT[20:]}",
        f"0a0a0a0a:{TEXT[:-2]}9=",
        f"0a0a0a0a:{base64.b64encode(b'?' * 31 + bytes([255])).decode()}",
        f"0a0a0a0a:{SECRET.hex()}",
        f"0a0a0a0a:{'é' * 43}",
        f"0a0a0a0a:{TEXT};0b0b0b0b:{OTHER}",
    ],
)
def test_other_text_in_the_environment_is_refused_and_not_shown(text):
    with pytest.raises(InteractionConfigurationError, match="kid:secret") as caught:
        KeyRing.from_environment(text)
    message = told(caught.value)
    assert TEXT[:12] not in message
    assert SECRET.hex()[:12] not in message


@given(st.text())
def test_any_text_is_a_ring_or_a_named_mistake(text):
    with pytest.raises(InteractionConfigurationError):
        KeyRing.from_environment(text)


@given(st.binary(min_size=32, max_size=32))
def test_every_secret_comes_back_padded_or_not(secret):
    text = base64.urlsafe_b64encode(secret).decode()
    for spelled in (text, text.rstrip("=")):
        assert KeyRing.from_environment(f"0a0a0a0a:{spelled}").minting.secret == secret


# The ring.


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [key("0a0a0a0a")],
        [key("0a0a0a0a", "retired")],
        [key("0a0a0a0a", "mints"), key("0b0b0b0b", "mints")],
        [key("0a0a0a0a", "mints"), key("0a0a0a0a")],
        [key("nothex!!", "mints")],
        [Key(kid="0a0a0a0a", secret=b"short", state="mints")],
    ],
)
def test_a_ring_that_cannot_work_is_refused(keys):
    with pytest.raises(InteractionConfigurationError, match="exactly one key that mints"):
        KeyRing(keys)


def test_a_retired_key_does_not_open():
    ring = KeyRing([key("0a0a0a0a", "mints"), key("0b0b0b0b"), key("0c0c0c0c", "retired")])
    assert ring.by_kid("0c0c0c0c") is None
    assert ring.by_kid("0b0b0b0b") is not None


def test_a_ring_tells_lives_and_no_secrets():
    ring = KeyRing([key("0a0a0a0a", "mints"), key("0b0b0b0b")])
    assert list(ring) == [KeyLife(kid="0a0a0a0a", state="mints"), KeyLife(kid="0b0b0b0b", state="opens")]
    assert not any(hasattr(life, "secret") for life in ring)
    assert repr(ring) == "<KeyRing 0a0a0a0a mints, 0b0b0b0b opens>"
    assert repr(SECRET) not in f"{ring.minting!r}{vars(ring)!r}"
    with pytest.raises(AttributeError):
        ring.minting.state = "opens"


class Readings:
    """A source of keys that counts how often it is read, and can be broken."""

    def __init__(self, *keys: Key) -> None:
        self.keys: list[Key] = list(keys)
        self.count = 0
        self.broken = False

    def __call__(self) -> list[Key]:
        self.count += 1
        if self.broken:
            raise InteractionConfigurationError("the file is damaged")
        return self.keys


def test_an_unknown_key_makes_the_ring_read_again_once_a_second_at_most(clock):
    source = Readings(key("0a0a0a0a", "mints"))
    ring = KeyRing(source.keys, reload=source)
    source.keys = [*source.keys, key("0b0b0b0b")]
    assert ring.by_kid("0b0b0b0b") is None
    assert source.count == 0
    clock[0] += MISS_SECONDS
    assert ring.by_kid("0b0b0b0b") is not None
    for _ in range(1000):
        assert ring.by_kid(os.urandom(4)) is None
    assert source.count == 1
    clock[0] += MISS_SECONDS
    assert ring.by_kid("0c0c0c0c") is None
    assert source.count == 2


def test_a_known_key_is_looked_up_without_reading_until_a_minute_has_passed(clock):
    source = Readings(key("0a0a0a0a", "mints"), key("0b0b0b0b"))
    ring = KeyRing(source.keys, reload=source)
    source.keys = [key("0a0a0a0a", "retired"), key("0b0b0b0b", "mints")]
    clock[0] += REREAD_SECONDS - 1
    assert ring.by_kid("0a0a0a0a") is not None
    assert ring.minting.kid == "0a0a0a0a"
    assert source.count == 0
    clock[0] += 1
    assert ring.minting.kid == "0b0b0b0b"
    assert ring.by_kid("0a0a0a0a") is None
    assert source.count == 1


def test_a_source_that_breaks_leaves_the_ring_as_it_is(clock, caplog):
    source = Readings(key("0a0a0a0a", "mints"))
    ring = KeyRing(source.keys, reload=source)
    source.broken = True
    clock[0] += REREAD_SECONDS
    assert ring.minting.kid == "0a0a0a0a"
    assert "the file is damaged" in caplog.text
    source.broken, source.keys = False, [key("0b0b0b0b", "mints")]
    clock[0] += REREAD_SECONDS
    assert ring.minting.kid == "0b0b0b0b"


def test_a_ring_without_a_source_never_changes(clock):
    ring = KeyRing([key("0a0a0a0a", "mints")])
    clock[0] += 10 * REREAD_SECONDS
    assert ring.by_kid("0b0b0b0b") is None
    assert ring.minting.kid == "0a0a0a0a"


# The file: how it is made.


def test_the_file_is_made_on_first_use_for_its_owner_alone(directory):
    ring = KeyFile(directory).create()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "keys.json").stat().st_mode) == 0o600
    assert [life.state for life in ring] == ["mints"]
    assert len(ring.minting.secret) == 32
    assert datetime.now(UTC) - ring.minting.made_at < timedelta(minutes=1)
    assert os.listdir(directory) == ["keys.json"]


def test_a_second_use_reads_what_is_there(file, directory):
    before = (directory / "keys.json").read_bytes()
    assert file.create().minting == KeyFile(directory).load().minting
    assert (directory / "keys.json").read_bytes() == before


def _create(directory: Path, start, said) -> None:
    start.wait()
    said.put(KeyFile(directory).create().minting.kid)


def test_of_eight_processes_that_start_at_once_all_have_the_same_key(directory):
    context = multiprocessing.get_context("fork")
    for round_ in range(5):
        start, said = context.Barrier(8), context.Queue()
        workers = [context.Process(target=_create, args=(directory / str(round_), start, said)) for _ in range(8)]
        for worker in workers:
            worker.start()
        kids = {said.get(timeout=30) for _ in workers}
        for worker in workers:
            worker.join()
        assert len(kids) == 1
        assert os.listdir(directory / str(round_)) == ["keys.json"]


def test_whoever_comes_second_to_an_absent_file_reads_the_winners(directory, monkeypatch):
    winner = KeyFile(directory).create().minting
    monkeypatch.setattr(Path, "exists", lambda _self: False)
    assert KeyFile(directory).create().minting == winner
    assert os.listdir(directory) == ["keys.json"]


def _new(directory: Path, start) -> None:
    start.wait()
    KeyFile(directory).new()


def test_changes_made_at_once_are_all_kept(file, directory):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    workers = [context.Process(target=_new, args=(directory, start)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(file.list()) == 10


# The file: the life of a key.


def test_a_new_key_only_opens(file):
    made = file.new()
    ring = file.load()
    assert made.state == "opens"
    assert ring.minting.kid != made.kid
    assert ring.by_kid(made.kid) is not None
    assert ring.by_kid(made.kid).secret != ring.minting.secret


def test_a_promoted_key_mints_and_the_former_goes_on_opening(file):
    former = file.load().minting
    made = file.new()
    before = datetime.now(UTC)
    promoted = file.promote(made.kid)
    ring = file.load()
    assert promoted == ring.minting.life()
    assert (promoted.state, promoted.stopped_minting_at) == ("mints", None)
    kept = ring.by_kid(former.kid)
    assert (kept.state, kept.secret, kept.made_at) == ("opens", former.secret, former.made_at)
    assert before + SETTLES <= kept.stopped_minting_at <= datetime.now(UTC) + SETTLES


def test_promoting_twice_changes_nothing_and_back_is_possible(file):
    former, made = file.load().minting.kid, file.new().kid
    file.promote(made)
    once = file.list()
    assert file.promote(made) == file.load().minting.life()
    assert file.list() == once
    file.promote(former)
    assert {
        life.kid: (life.state, life.stopped_minting_at is None) for life in file.list() if life.use == "tokens"
    } == {
        former: ("mints", True),
        made: ("opens", False),
    }


def test_the_key_that_mints_cannot_be_retired(file):
    with pytest.raises(InteractionConfigurationError, match="promote another one first"):
        file.retire(file.load().minting.kid, nobody)


def test_a_key_is_retired_once_no_pause_needs_it(file, later):
    former = file.load().minting.kid
    file.promote(file.new().kid)
    stopped = file.list()[0].stopped_minting_at
    later(SETTLES + timedelta(seconds=1))
    pauses, asked = [uuid4() for _ in range(5)], []

    def blocked_by(before: datetime) -> list[UUID]:
        asked.append(before)
        return pauses

    with pytest.raises(InteractionConfigurationError) as caught:
        file.retire(former, blocked_by)
    assert "needed by 5 pauses" in str(caught.value)
    assert [str(pause) in str(caught.value) for pause in pauses] == [True, True, True, False, False]
    assert file.load().by_kid(former) is not None
    pauses.clear()
    assert file.retire(former, blocked_by).state == "retired"
    assert asked == [stopped, stopped]
    assert file.load().by_kid(former) is None
    assert file.retire(former, blocked_by).state == "retired"
    assert len(asked) == 2


def test_a_key_that_may_still_be_minting_elsewhere_is_not_retired(file):
    former = file.load().minting.kid
    file.promote(file.new().kid)
    with pytest.raises(InteractionConfigurationError, match="may mint under key .* until 20"):
        file.retire(former, lambda _before: pytest.fail("it is too early to ask"))


def test_a_key_that_never_minted_is_retired_at_once(file):
    made = file.new().kid
    assert file.retire(made, lambda _before: pytest.fail("no pause can need it")).state == "retired"


def test_a_retired_key_stays_so(file):
    made = file.new().kid
    file.retire(made, nobody)
    with pytest.raises(InteractionConfigurationError, match="stays so"):
        file.promote(made)


@pytest.mark.parametrize("kid", ["00000000", "", "../keys.json", "keys.json", "\ud800"])
def test_a_key_that_is_not_there_is_named_as_such(file, kid):
    for change in (file.promote, lambda kid: file.retire(kid, nobody)):
        with pytest.raises(InteractionConfigurationError, match="`keys list`"):
            change(kid)


def test_an_error_of_whoever_is_asked_comes_through_and_changes_nothing(file, later):
    former = file.load().minting.kid
    file.promote(file.new().kid)
    later(SETTLES)

    def broken(_before: datetime) -> list[UUID]:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        file.retire(former, broken)
    assert file.load().by_kid(former) is not None


def test_an_id_that_is_taken_is_drawn_again(file, monkeypatch):
    taken = file.load().minting.kid
    draws = iter([taken, taken, "0d0d0d0d"])
    monkeypatch.setattr(keys_module.secrets, "token_hex", lambda _bytes: next(draws))
    assert file.new().kid == "0d0d0d0d"


def test_a_running_process_takes_up_a_rotation(file, clock, later):
    ring = file.load()
    former, made = ring.minting.kid, file.new().kid
    clock[0] += MISS_SECONDS
    assert ring.by_kid(made).state == "opens"
    file.promote(made)
    assert ring.minting.kid == former
    clock[0] += REREAD_SECONDS
    assert ring.minting.kid == made
    later(SETTLES)
    file.retire(former, nobody)
    clock[0] += REREAD_SECONDS
    assert ring.by_kid(former) is None


def test_keys_come_back_in_the_order_in_which_they_were_made(file):
    made = [file.list()[0].kid, *(file.new().kid for _ in range(4))]
    file.promote(made[2])
    assert [life.kid for life in file.list() if life.use == "tokens"] == made
    assert all(one.made_at <= other.made_at for one, other in pairwise(file.list()))


# The file: what is wrong with it.


def every_use(file: KeyFile):
    return (file.load, file.list, file.new, lambda: file.promote("00000000"), lambda: file.retire("00000000", nobody))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666])
def test_a_file_others_may_read_is_refused(file, directory, mode):
    (directory / "keys.json").chmod(mode)
    for use in (*every_use(file), file.create):
        with pytest.raises(InteractionConfigurationError, match="chmod 600"):
            use()
    (directory / "keys.json").chmod(0o400)
    assert file.load().minting


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_others_may_write_to_is_refused(file, directory, mode):
    directory.chmod(mode)
    for use in (*every_use(file), file.create):
        with pytest.raises(InteractionConfigurationError, match="chmod 700"):
            use()


def _changed(**change: object):
    def apply(stored: dict) -> bytes:
        stored["keys"][0].update(change)
        return json.dumps(stored).encode()

    return apply


@pytest.mark.parametrize(
    "damage",
    [
        lambda _stored: b"",
        lambda _stored: b"\xff\xfe",
        lambda _stored: b"[]",
        lambda stored: json.dumps(stored).encode()[:-20],
        lambda stored: json.dumps({**stored, "format": "pauseledger-keys/3"}).encode(),
        lambda stored: json.dumps({**stored, "keys": []}).encode(),
        lambda stored: json.dumps({**stored, "keys": stored["keys"] * 2}).encode(),
        lambda stored: json.dumps({**stored, "more": 1}).encode(),
        _changed(state="opens"),
        _changed(state="loud"),
        _changed(kid="../../ab"),
        _changed(secret=TEXT[:-4]),
        _changed(made_at="yesterday"),
        _changed(stopped_minting_at=5, secret=None),
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(file, directory, damage):
    path = directory / "keys.json"
    secret = json.loads(path.read_bytes())["keys"][0]["secret"]
    path.write_bytes(damage(json.loads(path.read_bytes())))
    damaged = path.read_bytes()
    for use in (*every_use(file), file.create):
        with pytest.raises(InteractionConfigurationError, match=r"keys\.json is damaged") as caught:
            use()
        assert secret[:12] not in told(caught.value)
    assert path.read_bytes() == damaged


def test_a_missing_file_is_named(directory):
    for use in every_use(KeyFile(directory)):
        with pytest.raises(InteractionConfigurationError, match="PAUSELEDGER_KEYS"):
            use()
    assert not directory.exists()


def test_what_cannot_be_read_or_made_is_named(directory, tmp_path):
    (directory / "keys.json").mkdir(parents=True)
    directory.chmod(0o700)
    with pytest.raises(InteractionConfigurationError, match="cannot read the key file"):
        KeyFile(directory).load()
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(InteractionConfigurationError, match="cannot make the key file"):
        KeyFile(tmp_path / "taken").create()


def test_a_change_that_fails_half_way_leaves_the_old_ring(file, directory, monkeypatch):
    before = file.list()

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InteractionConfigurationError, match="No space left"):
        file.new()
    monkeypatch.undo()
    assert file.list() == before
    assert sorted(os.listdir(directory)) == ["keys.json", "keys.lock"]


def test_changing_keeps_the_file_for_its_owner_alone(file, directory):
    file.new()
    assert {name: stat.S_IMODE((directory / name).stat().st_mode) for name in os.listdir(directory)} == {
        "keys.json": 0o600,
        "keys.lock": 0o600,
    }
