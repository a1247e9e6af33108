"""The verifier that is handed to auditors: a whole bundle passes, and no altered byte, row or head does."""

import asyncio
import base64
import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pauseledger as pl
import pytest
from pauseledger.infrastructure import raw_check, verify
from pauseledger.infrastructure.log_key import log_signer
from pauseledger.infrastructure.notes import Checkpoint, Signer, hashes_as_text
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.sealer import prove, prove_consistency
from pauseledger.infrastructure.stories import ANSWER, asked


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle as docs/evidence.md lays it out, made by hand; an older head; the public key."""
    return asyncio.run(make(tmp_path_factory.mktemp("made")))


async def make(folder):
    url, settings = f"sqlite:///{folder / 'ledger.db'}", pl.LedgerSettings(keys_directory=folder / "keys")
    async with pl.open_ledger(url, settings) as ledger:
        for run in range(4):
            one = await asked(ledger, idempotency_key=str(run))
            await one.redeem(ANSWER)
            if run == 1:
                older = ledger.notary(make_key=True).seal().head
        newest = ledger.notary().seal().head
        bundle, rows = folder / "bundle", sealed_rows(ledger.recorder)
        (bundle / "proofs").mkdir(parents=True)
        (bundle / "consistency").mkdir()
        (bundle / "head.txt").write_text(newest)
        heads = Checkpoint.of(older), Checkpoint.of(newest)
        (bundle / "consistency" / f"{heads[0].size}.txt").write_text(hashes_as_text(prove_consistency(rows, *heads)))
        before, lines, last = {}, [], {}
        for index, row in enumerate(raw_check.read(url).rows):
            was = before.get(row.stream, bytes(32))
            before[row.stream], last[row.stream] = row.state[4:36], index
            lines.append(
                {
                    "leaf_index": index,
                    "position": row.position,
                    "stream": str(row.stream),
                    "version": row.version,
                    "topic": row.topic,
                    "before": was.hex(),
                    "state": base64.b64encode(row.state).decode(),
                }
            )
        (bundle / "facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "proofs").mkdir()
        for index in range(len(lines)):
            # Whoever makes a bundle can prove each row, and hands out what they like.
            proof = folder / "proofs" / f"{index}.tlog-proof"
            proof.write_text(prove(rows, index, newest).text())
            if index in last.values():
                shutil.copy(proof, bundle / "proofs")
        signer = log_signer(ledger.recorder.identity().ledger_id, folder / "keys")
        return bundle, older, str(signer.verifier)


@pytest.fixture
def bundle(made, tmp_path):
    return Path(shutil.copytree(made[0], tmp_path / "bundle"))


def rewritten(bundle, change):
    lines = [json.loads(line) for line in (bundle / "facts.jsonl").read_text().splitlines()]
    (bundle / "facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def test_a_whole_bundle_is_verified_under_a_head_kept_before(made):
    bundle, older, key = made
    faults, says = verify.verify(bundle, key, older)
    assert faults == []
    assert says == "12 rows of 4 streams, 4 by a proof each, under a head of 12 leaves"
    assert verify.verify(bundle, key)[0] == verify.verify(bundle, key, (bundle / "head.txt").read_text())[0] == []


def test_the_file_alone_verifies_with_none_of_ours_at_hand(made, tmp_path):
    bundle, older, key = made
    copy = tmp_path / "verify.py"
    shutil.copy(verify.__file__, copy)
    (tmp_path / "key").write_text(key + "\n")
    (tmp_path / "head").write_text(older)
    command = [sys.executable, "-I", copy, bundle, "--public-key", tmp_path / "key", "--head", tmp_path / "head"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok  verified 12 rows")
    (tmp_path / "head").write_text(older.replace("\n6\n", "\n5\n"))
    assert subprocess.run(command, check=False, capture_output=True, text=True).returncode == 5
    for lacking in ((bundle / "head.txt", command[5]), (bundle, tmp_path / "nowhere")):
        done = subprocess.run(
            [*command[:3], lacking[0], command[4], lacking[1]], check=False, capture_output=True, text=True
        )
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert "unpack an archive first" in done.stderr or "nowhere" in done.stderr
    source = copy.read_text()
    assert "import pauseledger" not in source


def test_it_runs_as_a_module_with_nothing_said_beside(made, tmp_path):
    bundle, _, key = made
    (tmp_path / "key").write_text(key)
    command = [sys.executable, "-m", "pauseledger.infrastructure.verify", bundle, "--public-key", tmp_path / "key"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_short_enough_to_be_read_in_one_sitting():
    source = Path(verify.__file__).read_text("utf-8")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 250


@pytest.mark.parametrize("column", ["stream", "version", "topic", "before", "state", "leaf_index"])
def test_each_altered_column_is_found_with_its_place(made, bundle, column):
    wrong = {
        "stream": "0" * 8 + "-0000-8000-8000-" + "0" * 12,
        "version": 7,
        "topic": "pause.lapsed@1",
        "leaf_index": 5,
    }
    wrong |= {"before": "11" * 32, "state": base64.b64encode(b"PLF1" + bytes(60)).decode()}

    def change(lines):
        lines[4][column] = wrong[column]
        return lines

    rewritten(bundle, change)
    if column == "leaf_index":
        (bundle / "proofs" / "5.tlog-proof").rename(bundle / "proofs" / "4.tlog-proof")
    faults, _ = verify.verify(bundle, made[2])
    assert any("line 5," in fault or "line 6," in fault or "line 4," in fault for fault in faults), faults


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_row_that_is_left_out_between_is_found(made, bundle, at):
    rewritten(bundle, lambda lines: [line for number, line in enumerate(lines) if number != 3 + at])
    faults, _ = verify.verify(bundle, made[2])
    # The first of a stream may be of another period; the last has the stream's proof.
    assert bool(faults) == (at > 0)


@pytest.mark.parametrize("spelt", ["upper", "braces", "urn", "bare", "in the other file", "all in the other file"])
def test_a_row_left_out_between_is_found_wherever_those_behind_it_are_told(made, bundle, spelt):
    """Each row that is left is genuine, and proved by itself."""
    shutil.copytree(made[0].parent / "proofs", bundle / "proofs", dirs_exist_ok=True)
    lines = [json.loads(line) for line in (bundle / "facts.jsonl").read_text().splitlines()]
    first, last = lines[3], lines[5]
    assert first["stream"] == last["stream"]
    told, beside = [*lines[:4], *lines[5:]], []
    match spelt:
        case "upper":
            last["stream"] = last["stream"].upper()
        case "braces":
            last["stream"] = f"{{{last['stream']}}}"
        case "urn":
            last["stream"] = f"urn:uuid:{last['stream']}"
        case "bare":
            last["stream"] = last["stream"].replace("-", "")
        case "in the other file":
            told, beside = [one for one in told if one is not last], [last]
        case _:
            told, beside = [one for one in told if one["stream"] != last["stream"]], [first, last]
    rewritten(bundle, lambda _: told)
    (bundle / "beside.jsonl").write_text("".join(json.dumps(line) + "\n" for line in beside))
    faults, _ = verify.verify(bundle, made[2])
    assert len(faults) == max(len(beside), 1), faults
    assert all(f"stream {last['stream']}, version" in fault for fault in faults)


def test_rows_that_nothing_proves_are_found(made, bundle):
    for proof in (bundle / "proofs").iterdir():
        proof.unlink()
    assert len(verify.verify(bundle, made[2])[0]) == 12


def test_a_head_of_another_key_or_another_log_is_refused(made, bundle):
    name = made[2].partition("+")[0]
    thief = Signer(name, bytes(32))
    newest = (bundle / "head.txt").read_text()
    (bundle / "head.txt").write_text(thief.sign(newest.rpartition("\n\n")[0] + "\n"))
    assert "not signed with the public key" in verify.verify(bundle, made[2])[0][0]
    (bundle / "head.txt").write_text(newest)
    fork = Checkpoint.of(newest)
    forked = thief.sign(Checkpoint(fork.origin, fork.size, bytes(32)).text())
    assert "not signed" in verify.verify(bundle, made[2], forked)[0][0]
    (bundle / "consistency" / "6.txt").unlink()
    assert "does not begin" in verify.verify(bundle, made[2], made[1])[0][0]


@pytest.mark.parametrize("harm", ["another format", "more bytes"])
def test_what_no_digest_covers_is_found_in_a_row_that_is_proved(made, bundle, harm):
    def change(lines):
        state = base64.b64decode(lines[3]["state"])
        state = b"PLF2" + state[4:] if harm == "another format" else state + b"x"
        lines[3]["state"] = base64.b64encode(state).decode()
        return lines

    rewritten(bundle, change)
    faults, _ = verify.verify(bundle, made[2])
    assert [fault.split(",")[0] for fault in faults] == ["facts.jsonl line 4"]


@pytest.mark.parametrize("harm", ["", "of another ledger", "a first row that follows another one"])
def test_a_row_that_was_sealed_and_must_not_be_is_found(made, tmp_path, harm):
    """Whoever has the log key seals whatever they like; what a row says of itself has to hold nevertheless."""
    name = made[2].partition("+")[0]
    ledger, stream = UUID(name.partition("/")[2]), uuid4()
    before = bytes(31) + b"1" if harm.startswith("a first") else bytes(32)
    header = json.dumps({"ledger": str(uuid4() if harm.startswith("of") else ledger), "pause": str(stream)}).encode()
    parts = (b"plf/1", ledger.bytes, stream.bytes, (1).to_bytes(8, "big"), b"pause.paused@1", before, header)
    digest = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
    state = b"PLF1" + digest + len(header).to_bytes(4, "big") + header
    head = Checkpoint(name, 1, hashlib.sha256(b"\0" + digest).digest())
    note = log_signer(str(ledger), made[0].parent / "keys").sign(head.text())
    row = {"leaf_index": 0, "position": 1, "stream": str(stream), "version": 1, "topic": "pause.paused@1"}
    row |= {"before": before.hex(), "state": base64.b64encode(state).decode()}
    (tmp_path / "proofs").mkdir()
    (tmp_path / "head.txt").write_text(note)
    (tmp_path / "proofs" / "0.tlog-proof").write_text(f"c2sp.org/tlog-proof@v1\nindex 0\n\n{note}")
    (tmp_path / "facts.jsonl").write_text(json.dumps(row) + "\n")
    assert len(verify.verify(tmp_path, made[2])[0]) == bool(harm)


def test_a_public_key_that_is_none_is_told_as_that(made):
    name, told, key = made[2].split("+", 2)
    raw = base64.b64decode(key)
    of = hashlib.sha256(name.encode() + b"\n" + raw[:-1]).digest()[:4].hex()
    kind = b"\2" + raw[1:]
    of_kind = hashlib.sha256(name.encode() + b"\n" + kind).digest()[:4].hex()
    for wrong in (
        f"{name}x+{told}+{key}",
        f"{name}+00000000+{key}",
        f"{name}+{of}+{base64.b64encode(raw[:-1]).decode()}",
        f"{name}+{of_kind}+{base64.b64encode(kind).decode()}",
    ):
        assert "the public key is none" in verify.verify(made[0], wrong)[0][0]


def test_a_head_that_the_key_signed_of_something_else_is_refused(made, bundle):
    name = made[2].partition("+")[0]
    signer, head = log_signer(name.partition("/")[2], made[0].parent / "keys"), Checkpoint.of(made[1])
    for text in (
        Checkpoint("pauseledger/another", head.size, head.root).text(),
        Checkpoint(name, head.size, head.root).text().replace("\n6\n", "\n-6\n"),
        Checkpoint(name, head.size, head.root[:-1]).text(),
    ):
        (bundle / "head.txt").write_text(signer.sign(text))
        assert verify.verify(bundle, made[2])[0] == ["head: a head is not this log's"]


def test_a_head_that_was_kept_later_than_the_bundles_asks_for_a_newer_bundle(made, bundle):
    newest = (bundle / "head.txt").read_text()
    (bundle / "head.txt").write_text(made[1])
    assert "ask for one under a newer head" in verify.verify(bundle, made[2], newest)[0][0]


@pytest.mark.parametrize("root", [bytes(32), hashlib.sha256(b"").digest()])
def test_a_kept_head_of_no_leaves_is_refused_and_nothing_waits(made, root, tmp_path):
    name = made[2].partition("+")[0]
    signer = log_signer(name.partition("/")[2], made[0].parent / "keys")
    (tmp_path / "key").write_text(made[2])
    (tmp_path / "head").write_text(signer.sign(Checkpoint(name, 0, root).text()))
    command = [sys.executable, verify.__file__, made[0], "--public-key", tmp_path / "key", "--head", tmp_path / "head"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert (done.returncode, "no leaves" in done.stdout) == (5, True)


def test_no_flipped_bit_in_a_bundle_is_believed(made, bundle):
    chance = random.Random(9162)
    files = [
        bundle / "facts.jsonl",
        bundle / "head.txt",
        bundle / "consistency" / "6.txt",
        *(bundle / "proofs").iterdir(),
    ]
    for _ in range(120):
        path = chance.choice(files)
        was = path.read_bytes()
        at = chance.randrange(len(was))
        path.write_bytes(was[:at] + bytes([was[at] ^ 1 << chance.randrange(8)]) + was[at + 1 :])
        faults, _ = verify.verify(bundle, made[2], made[1])
        assert faults or b'"position"' in was[at - 15 : at] or blank(path, was, at), (path, at)
        path.write_bytes(was)


def blank(path, was, at):
    """Space in JSON, and between hashes, says nothing; so does a position, which is no part of what is proved."""
    line = was[was.rfind(b"\n", 0, at) + 1 : at + 1]
    position = line.rfind(b'"position"')
    return was[at : at + 1] in b" \n" or (position >= 0 and b'"stream"' not in line[position:])


def told(bundle, change):
    """Tell the texts of the bundle's first row as an export with --content does, after a change."""
    salt, text = bytes(16), "Ship it?"
    one = {"digest": hashlib.sha256(salt + text.encode()).hexdigest(), "salt": salt.hex(), "text": text}

    def tell(lines):
        lines[0]["contents"] = [change(one)]
        return lines

    rewritten(bundle, tell)


def test_a_text_that_the_row_does_not_name_is_found(made, bundle):
    told(bundle, lambda one: one)
    assert [fault.partition(": ")[2] for fault in verify.verify(bundle, made[2])[0]] == [
        "a text is told that it does not name"
    ]


def test_what_is_left_out_at_the_beginning_is_told_though_it_is_no_fault(made, bundle):
    whole = verify.verify(bundle, made[2])
    assert "beginning" not in whole[1]
    rewritten(bundle, lambda lines: lines[1:])
    faults, says = verify.verify(bundle, made[2])
    assert (faults, says.rpartition("; ")[2]) == ([], "streams not told from their beginning: 1")
