"""Evidence bundles: what is in one, that it verifies as a separate process, and that no altered byte of it does."""

import asyncio
import csv
import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pauseledger as pl
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.ttLib.tables._g_l_y_f import Glyph
from pauseledger.domain.commands import PresentCommand
from pauseledger.infrastructure import export_report, verify
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.export import _cell
from pauseledger.infrastructure.log_key import log_signer
from pauseledger.infrastructure.merkle import Unproved
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.sealer import Sealer, origin_of
from pauseledger.infrastructure.stories import ANSWER, WRONG_ANSWER, approve, asked, axes

ACME, RIVAL = pl.Scope(tenant_id="acme"), pl.Scope(tenant_id="=rival()")
SECRET, MARIA = "what only the rival asks", "Mar\u00eda \u65e5\u672c"


@dataclass(frozen=True)
class Made:
    """A ledger of two tenants, the pauses in it, and a head that an auditor kept before the last of them."""

    folder: Path
    url: str
    settings: pl.LedgerSettings
    older: str
    key: str
    pauses: dict[str, UUID]
    between: datetime

    def export(self, out: Path, scope: pl.Scope | None = ACME, **fields):
        """Export, in a ledger that is opened for it."""

        async def inside():
            async with pl.open_ledger(self.url, self.settings) as ledger:
                command = pl.ExportCommand(out, **fields)
                if scope is None:
                    return await ledger.export_of_all_tenants(command)
                return await ledger.export(scope, command)

        return asyncio.run(inside())

    def bundle(self, out: Path, scope: pl.Scope | None = ACME, **fields) -> list[dict]:
        """Export, hold it to verify, and give its facts."""
        self.export(out, scope, **{"report": False, **fields})
        assert verify.verify(out, self.key)[0] == []
        return lines(out)


def lines(bundle: Path, name: str = "facts.jsonl") -> list[dict]:
    return [json.loads(line) for line in (bundle / name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return asyncio.run(make(tmp_path_factory.mktemp("made")))


async def make(folder):
    url, settings = f"sqlite:///{folder / 'ledger.db'}", pl.LedgerSettings(keys_directory=folder / "keys")
    root, maria = pl.Actor("root"), pl.Actor(MARIA, assurance="authenticated")
    async with pl.open_ledger(url, settings) as ledger:
        asking = {"one": axes(), "other run": axes(run_id="run-2"), "other session": axes(session_id="session-2")}
        stories = {name: await asked(ledger, axes=where) for name, where in asking.items()}
        for story in stories.values():
            with pytest.raises(pl.ResponseInvalid):
                await story.redeem(WRONG_ANSWER, answered_by=maria)
            await story.redeem(ANSWER, answered_by=maria)
        older = ledger.notary(make_key=True).seal().head
        await asyncio.sleep(0.01)
        between = datetime.now(UTC)
        await ledger.capability.govern("unrelated", pl.Policy(name="elsewhere"), by=root)
        await ledger.capability.govern("approval", pl.Policy(name="owners", shown_within=60), by=root)
        governed = await asked(ledger, approve(turn=pl.Turn("openai-chat", TURN), axes=axes(run_id="run-3")))
        show = PresentCommand(governed.pause_id, axes=governed.axes, to=maria, rendering="transfer 7 to Bob")
        shown = await ledger.capability.presented(show)
        await governed.redeem({"decision": "approve"}, answered_by=maria, cites=[shown.id])
        question = {"questions": [{"question": SECRET, "options": [{"label": "a"}, {"label": "b"}]}]}
        rival = await asked(ledger, request=question, axes=axes(scope=RIVAL))
        with pytest.raises(pl.ScopeMismatch):
            await rival.redeem(ANSWER, axes=axes(scope=ACME))
        operator = ledger.operator(root)
        await operator.place_hold(ACME, "case-1", governed.pause_id)
        await operator.erase(stories["other session"].pause_id, "content", "gdpr-17")
        ledger.notary().seal()
        key = str(log_signer(ledger.recorder.identity().ledger_id, folder / "keys").verifier)
        pauses = {name: story.pause_id for name, story in {**stories, "governed": governed, "rival": rival}.items()}
    return Made(folder, url, settings, older, key, pauses, between)


TURN = [
    {"role": "user", "content": "Pay."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "transfer", "arguments": "{}"}}],
    },
]


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """The bundle of a tenant, with contents, under the head that the auditor kept."""
    out = tmp_path_factory.mktemp("whole") / "bundle"
    made.export(out, content=True, kept=[made.older])
    return out


def test_the_command_in_the_readme_verifies_the_bundle_with_none_of_ours_at_hand(made, whole):
    shell = re.search(r"```sh\n(.*?)```", (whole / "README.md").read_text("utf-8"), re.DOTALL)[1].splitlines()
    (whole.parent / "public-key.txt").write_text(made.key)
    (whole.parent / "head.txt").write_text(made.older)
    command = shell[-1].split()
    assert command[:2] == ["../venv/bin/python", "verify.py"]
    done = subprocess.run([sys.executable, "-I", *command[1:]], cwd=whole, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ok  verified {len(lines(whole)) + len(lines(whole, 'beside.jsonl'))} rows of ")
    assert "pauseledger" not in (whole / "verify.py").read_text().partition('"""\n\n')[2].partition("argparse.")[0]


def test_a_bundle_tells_its_pauses_whole_with_what_concerns_them(made, whole):
    facts, beside = lines(whole), lines(whole, "beside.jsonl")
    mine = {str(pause) for name, pause in made.pauses.items() if name != "rival"}
    assert {fact["pause"] for fact in facts} == mine
    topics = {fact["topic"].partition("@")[0] for fact in facts}
    assert topics >= {"pause.refused", "pause.presented", "pause.answered", "erasure.ordered", "erasure.ended"}
    assert [fact["topic"].partition("@")[0] for fact in beside] == ["policy.changed", "hold.placed"]
    assert beside[0]["fact"]["interaction"] == "approval"
    assert [fact["leaf_index"] for fact in facts] == sorted(fact["leaf_index"] for fact in facts)
    told = "\n".join(fact["sentence"] for fact in facts)
    assert "Whose name?" in told
    assert f'person "{MARIA}" (authenticated) answered' in told
    assert "request: erased" in told
    by_digest = {one["digest"]: one for fact in facts for one in fact["contents"]}
    request = next(one for one in by_digest.values() if one["text"] and "Whose name?" in one["text"])
    salted = bytes.fromhex(request["salt"]) + request["text"].encode()
    assert verify.sha(salted).hex() == request["digest"]


def test_an_export_never_crosses_a_tenant(made, whole, tmp_path):
    everything = b"".join(path.read_bytes() for path in whole.rglob("*") if path.is_file())
    for trace in (SECRET, "=rival", str(made.pauses["rival"])):
        assert trace.encode() not in everything
    for scope in (ACME, pl.Scope(tenant_id="acme", sub_tenant_id="")):
        with pytest.raises(pl.RequestMissing):
            made.export(tmp_path / "out", scope, pause=made.pauses["rival"])
    with pytest.raises(pl.InteractionConfigurationError, match="pass a Scope"):
        made.export(tmp_path / "out", "acme")
    facts = made.bundle(tmp_path / "rival", RIVAL)
    assert {fact["pause"] for fact in facts} == {str(made.pauses["rival"])}
    assert [fact["topic"].partition("@")[0] for fact in facts] == ["pause.paused", "pause.refused"]
    assert not (tmp_path / "rival" / "beside.jsonl").exists()
    both = made.bundle(tmp_path / "all", None)
    assert {fact["pause"] for fact in both} == {str(pause) for pause in made.pauses.values()}


def test_what_people_wrote_is_told_only_when_asked_for(made, tmp_path):
    out = tmp_path / "bundle"
    made.export(out, RIVAL)
    everything = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything
    assert "contents" not in lines(out)[0]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (lambda made: {"pause": made.pauses["one"]}, ["one"]),
        (lambda _: {"session_id": "session-1"}, ["one", "other run", "governed"]),
        (lambda _: {"session_id": "session-1", "run_id": "run-2"}, ["other run"]),
        (lambda made: {"ends": made.between}, ["one", "other run", "other session"]),
        (lambda made: {"begins": made.between}, ["governed", "other session"]),
    ],
    ids=["pause", "session", "run", "before", "from"],
)
def test_a_bundle_is_of_a_pause_a_session_a_run_or_a_period(made, tmp_path, chosen, names):
    facts = made.bundle(tmp_path / "bundle", **chosen(made))
    assert {fact["pause"] for fact in facts} == {str(made.pauses[name]) for name in names}
    first = {fact["stream"]: fact["version"] for fact in reversed(facts)}
    assert set(first.values()) == {1}
    if "ends" in chosen(made):
        assert max(datetime.fromisoformat(fact["at"]) for fact in facts) < made.between
        assert not any(fact["topic"].startswith("erasure.") for fact in facts)


def test_the_same_input_makes_the_same_bytes(made, whole, tmp_path):
    made.export(tmp_path / "a.zip", content=True)
    # Documents have times to the second, archives to two.
    time.sleep(2.1)
    made.export(tmp_path / "again", content=True, kept=[made.older])
    names = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*"))
    assert names == sorted(path.relative_to(tmp_path / "again").as_posix() for path in (tmp_path / "again").rglob("*"))
    assert "report-001.pdf" in names
    for name in names:
        if (whole / name).is_file():
            assert (whole / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    made.export(tmp_path / "b.zip", content=True)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path)
    assert verify.verify(tmp_path / "evidence", made.key)[0] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "again", "b.zip", "evidence"]


def test_no_flipped_bit_of_any_file_is_believed(made, whole, tmp_path):
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    chance = random.Random(6962)
    files = sorted(path for path in bundle.rglob("*") if path.is_file())
    for number in range(150):
        path = files[number % len(files)]
        was = path.read_bytes()
        at = chance.randrange(len(was))
        path.write_bytes(was[:at] + bytes([was[at] ^ 1 << chance.randrange(8)]) + was[at + 1 :])
        assert verify.verify(bundle, made.key, made.older)[0], (path, at)
        path.write_bytes(was)
    assert verify.verify(bundle, made.key, made.older)[0] == []
    (bundle / "added.txt").write_text("")
    assert "added.txt" in verify.verify(bundle, made.key)[0][0]


@pytest.mark.parametrize("name", ["facts.jsonl", "beside.jsonl"])
def test_what_is_told_as_fact_is_what_was_stored_whoever_writes_the_digests_anew(made, whole, tmp_path, name):
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    (bundle / "SHA256SUMS").unlink()
    assert verify.verify(bundle, made.key)[0] == []
    told = lines(bundle, name)
    told[0]["fact"]["at"] = "2020-01-01T00:00:00.000000Z"
    (bundle / name).write_text("".join(json.dumps(line) + "\n" for line in told))
    assert "not what its bytes say" in verify.verify(bundle, made.key)[0][0]


def test_a_row_beside_needs_a_proof_of_its_own(made, whole, tmp_path):
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    (bundle / "SHA256SUMS").unlink()
    (bundle / "proofs" / f"{lines(bundle, 'beside.jsonl')[0]['leaf_index']}.tlog-proof").unlink()
    faults, _ = verify.verify(bundle, made.key)
    assert len(faults) == 1
    assert faults[0].startswith("beside.jsonl line 1,")


def test_beside_stands_no_row_of_a_stream_in_which_none_may_be_left_out(made, whole, tmp_path):
    facts, beside = lines(whole), lines(whole, "beside.jsonl")
    ended = next(fact for fact in facts if fact["topic"] == "erasure.ended@1")
    for name, told, more in (
        ("of a pause", [fact for fact in facts if fact is not ended], [ended, *beside]),
        ("of a stream that is told whole", [*facts, beside[0]], beside),
    ):
        bundle = Path(shutil.copytree(whole, tmp_path / name))
        (bundle / "SHA256SUMS").unlink()
        for file, rows in (("facts.jsonl", told), ("beside.jsonl", more)):
            (bundle / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = [fault for fault in verify.verify(bundle, made.key)[0] if fault.startswith("beside.jsonl line 1,")]
        assert len(found) == 1, name
        assert "stand in that file alone" in found[0]


def test_the_report_prints_name_time_and_meaning_of_each_answer(made, whole, tmp_path):
    printed = (whole / "report-001.pdf").read_bytes().decode("latin-1")
    text = re.sub(r"\s+", " ", " ".join(re.findall(r"\((.*)\) Tj", printed))).replace("\\(", "(").replace("\\)", ")")
    answers = [fact for fact in lines(whole) if fact["topic"].startswith("pause.answered")]
    assert text.count("SIGNED BY") == text.count("MEANING ") == len(answers) == 4
    assert 'SIGNED BY person "Mar\u00eda \\\\u65e5\\\\u672c" (authenticated)' in text
    assert f"DATE, TIME {answers[0]['at'][:19].replace('T', ' ')} UTC" in text
    assert "MEANING approve: let the call run" in text
    assert "stands as its number in Unicode" in text
    for fact in answers:
        assert fact["digest"] in text


def test_a_report_in_a_font_that_is_given_escapes_only_what_that_font_lacks(made, tmp_path):
    font = a_font(tmp_path / "small.ttf", [*range(32, 127), 0xED, 0x65E5])
    made.export(tmp_path / "bundle", pause=made.pauses["one"], font=font)
    printed = (tmp_path / "bundle" / "report-001.pdf").read_bytes()
    assert b"/FontFile2" in printed
    assert printed != (made_without_font(made, tmp_path) / "report-001.pdf").read_bytes()
    with pytest.raises(pl.InteractionConfigurationError, match="no TrueType"):
        made.export(tmp_path / "other", font=Path(__file__))


def made_without_font(made, tmp_path):
    made.export(tmp_path / "plain", pause=made.pauses["one"])
    return tmp_path / "plain"


def a_font(path, characters):
    """Make a font whose glyphs are all empty."""
    names = [".notdef", *(f"g{char}" for char in characters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({char: f"g{char}" for char in characters})
    builder.setupGlyf({name: Glyph() for name in names})
    builder.setupHorizontalMetrics(dict.fromkeys(names, (500, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Small", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def test_a_long_report_has_volumes(tmp_path, monkeypatch):
    monkeypatch.setattr(export_report, "VOLUME", 3)
    monkeypatch.setattr(export_report, "_LONG", 1000)
    report = export_report.Report(tmp_path, ["About it."], None)
    for number in range(7):
        report.add([f"fact {number}"], datetime(2026, 1, 1 + number, tzinfo=UTC))
    report.add(["x" * 1000], None)
    report.add(["the last"], None)
    report.close()
    told = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    holds = [b"fact 2", b"fact 5", b"fact 6", b"the last"]
    assert [name for fact in holds for name, said in told.items() if fact in said] == sorted(told)
    assert b"Volume 2" in told["report-002.pdf"]
    assert b"D:20260106" in told["report-002.pdf"]


def test_no_cell_of_the_table_is_a_formula(made, tmp_path):
    made.export(tmp_path / "bundle", RIVAL, report=False)
    with (tmp_path / "bundle" / "facts.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["tenant"] for row in rows] == ["'=rival()"] * 2
    for begins in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20":
        assert _cell(f"{begins}1") == f"'{begins}1"
    assert (_cell(-1), _cell("1=1")) == (-1, "1=1")


def test_what_cannot_be_exported_is_told_and_leaves_nothing_behind(made, tmp_path, monkeypatch):
    out = tmp_path / "out"
    wrong = pl.InteractionConfigurationError
    with pytest.raises(pl.RequestMissing):
        made.export(out, None, pause=UUID(int=7))
    with pytest.raises(wrong, match="period"):
        made.export(out, begins=datetime(2020, 1, 1, tzinfo=UTC), ends=datetime(2020, 1, 2, tzinfo=UTC))
    with pytest.raises(wrong, match="zones"):
        made.export(out, begins=datetime(2020, 1, 1))  # noqa: DTZ001 - the point
    with pytest.raises(wrong, match="other way round"):
        made.export(out, begins=made.between, ends=made.between - timedelta(1))
    with pytest.raises(wrong, match="pathlib"):
        made.export(str(out))
    with pytest.raises(wrong, match="its session"):
        made.export(out, run_id="run-1")
    with pytest.raises(wrong, match="not both"):
        made.export(out, pause=made.pauses["one"], session_id="session-1")
    monkeypatch.setitem(sys.modules, "fpdf", None)
    with pytest.raises(wrong, match="--no-report"):
        made.export(out)
    assert list(tmp_path.iterdir()) == []
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(wrong, match="not empty"):
        made.export(out, report=False)
    (tmp_path / "x.zip").write_text("")
    with pytest.raises(wrong, match="there already"):
        made.export(tmp_path / "x.zip", report=False)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("harm", ["cut off", "altered", "unreadable"])
def test_a_ledger_that_was_altered_makes_no_bundle_that_verifies(made, tmp_path, harm):
    source, copy = made.folder / "ledger.db", tmp_path / "ledger.db"
    with closing(sqlite3.connect(source)) as was, closing(sqlite3.connect(copy)) as now:
        was.backup(now)
        for (name,) in now.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            now.execute(f"DROP TRIGGER {name}")
        last = "(SELECT max(rowid) FROM stored_events WHERE topic = 'pause.consumed@1')"
        with now:
            if harm == "cut off":
                now.execute(f"DELETE FROM stored_events WHERE rowid = {last}")
            else:
                old, new = ('"origin":"redeem"', '"origin":"ready" ') if harm == "altered" else ("PLF1", "XXXX")
                [(state,)] = now.execute(f"SELECT state FROM stored_events WHERE rowid = {last}").fetchall()
                assert old.encode() in state
                changed = state.replace(old.encode(), new.encode(), 1)
                now.execute(f"UPDATE stored_events SET state = ? WHERE rowid = {last}", (changed,))
    harmed = Made(tmp_path, f"sqlite:///{copy}", made.settings, made.older, made.key, made.pauses, made.between)
    out = tmp_path / "out" / "bundle"
    if harm == "altered":
        harmed.export(out, report=False)
        assert "not what was written" in verify.verify(out, made.key)[0][0]
    else:
        with pytest.raises(Unproved, match="check"):
            harmed.export(out, report=False)
        assert not out.parent.exists()


@pytest.fixture
def operator(made, monkeypatch, capsys):
    """Run a command, and give its exit code and JSON."""
    monkeypatch.setenv("PAUSELEDGER_STORE", made.url)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(made.folder / "keys"))

    def call(*arguments):
        code = run([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_the_command_line_exports_and_says_what_is_in_it(made, operator, tmp_path):
    code, told = operator("export", "--pause", made.pauses["one"], "--out", tmp_path / "one.zip", "--content")
    assert (code, told["outcome"], told["pauses"], told["unsealed"]) == (0, "exported", 1, 0)
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert b'"topic":"hold.placed@1"' in archive.read("evidence/beside.jsonl")
        assert b'About tenant `"acme"`, no sub-tenant' in archive.read("evidence/README.md")
    (tmp_path / "kept").write_text(made.older)
    period = ("--from", "2020-01-01T00:00:00Z", "--to", made.between.isoformat())
    chosen = ("--tenant", "acme", "--session", "session-1", "--run", "run-1", *period)
    code, told = operator("export", *chosen, "--since", tmp_path / "kept", "--no-report", "--out", tmp_path / "run")
    assert (code, told["pauses"]) == (0, 1)
    assert verify.verify(tmp_path / "run", made.key, made.older)[0] == []
    code, told = operator("export", "--session", "session-1", "--out", tmp_path / "no")
    assert (code, told["outcome"]) == (2, "usage")
    assert "--tenant" in told["says"]
    code, told = operator("export", "--all-tenants", "--out", tmp_path / "all", "--no-report")
    assert (code, told["pauses"]) == (0, len(made.pauses))
    code, told = operator("export", "--pause", UUID(int=7), "--out", tmp_path / "no")
    assert (code, told["reason"]) == (3, "request_missing")


def test_what_is_not_sealed_yet_is_left_out_and_told_or_sealed_first(tmp_path, operator, monkeypatch):
    monkeypatch.setenv("PAUSELEDGER_STORE", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))

    async def pause(number):
        settings = pl.LedgerSettings(keys_directory=tmp_path / "keys")
        async with pl.open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", settings) as ledger:
            return await asked(ledger, idempotency_key=str(number))

    chosen = ("export", "--tenant", "acme", "--no-report")
    asyncio.run(pause(1))
    code, told = operator(*chosen, "--out", tmp_path / "no")
    assert (code, "pauseledger seal" in told["says"]) == (2, True)
    operator("keys", "log")
    code, told = operator(*chosen, "--out", tmp_path / "no")
    assert (code, "pauseledger seal" in told["says"]) == (2, True)
    code, told = operator(*chosen, "--seal", "--out", tmp_path / "first")
    assert (code, told["rows"], told["unsealed"]) == (0, 1, 0)
    later = asyncio.run(pause(2))
    code, told = operator(*chosen, "--out", tmp_path / "second")
    assert (code, told["rows"], told["unsealed"]) == (0, 1, 1)
    assert "1 fact that belongs here was not under that head yet" in (tmp_path / "second" / "README.md").read_text()
    code, told = operator("export", "--pause", later.pause_id, "--no-report", "--out", tmp_path / "no")
    assert (code, "--seal" in told["says"]) == (2, True)
    shutil.rmtree(tmp_path / "keys")
    (tmp_path / "public").write_text((tmp_path / "second" / "public-key.txt").read_text())
    code, told = operator(*chosen, "--public-key", tmp_path / "public", "--out", tmp_path / "third")
    assert (code, told["rows"]) == (0, 1)
    assert not (tmp_path / "keys").exists()


def test_a_row_sealed_late_stands_behind_the_others_and_is_proved(tmp_path):
    """Leaves are then in another order than positions."""

    async def inside():
        settings = pl.LedgerSettings(keys_directory=tmp_path / "keys")
        async with pl.open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", settings) as ledger:
            for number in range(3):
                await (await asked(ledger, idempotency_key=str(number))).redeem(ANSWER)
            rows = sealed_rows(ledger.recorder)
            digests = rows.digests(0, 100)
            late = [digests[1]]
            rows.digests = lambda gt, limit: [one for one in digests if one[0] > gt and one not in late][:limit]
            signer = log_signer(ledger.recorder.identity().ledger_id, tmp_path / "keys", make=True)
            sealing = Sealer(rows, origin_of(ledger.recorder.identity().ledger_id), signer)
            sealing.seal()
            sealing.seal()
            exported = await ledger.export(ACME, pl.ExportCommand(tmp_path / "bundle", report=False))
            return exported, str(signer.verifier)

    exported, key = asyncio.run(inside())
    assert (exported.rows, exported.size) == (9, 9)
    assert verify.verify(tmp_path / "bundle", key)[0] == []
    positions = [fact["position"] for fact in lines(tmp_path / "bundle")]
    assert positions != sorted(positions)


@pytest.mark.parametrize("harm", ["the answer", "an erased text told anew", "no salt"])
def test_a_text_that_is_not_what_was_written_is_found_also_where_the_sums_were_made_anew(made, whole, tmp_path, harm):
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    assert verify.verify(bundle, made.key)[0] == []
    rows = lines(bundle)
    standing = harm != "an erased text told anew"
    where = next(
        at for at, row in enumerate(rows) if any((one["text"] is not None) == standing for one in row["contents"])
    )
    one = next(one for one in rows[where]["contents"] if (one["text"] is not None) == standing)
    one |= (
        {"salt": None} if harm == "no salt" else {"salt": one["salt"] or "00" * 16, "text": "Somebody else said this."}
    )
    (bundle / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bundle / "SHA256SUMS").unlink()
    [fault] = verify.verify(bundle, made.key)[0]
    assert fault.startswith(f"facts.jsonl line {where + 1}, leaf_index {rows[where]['leaf_index']}, ")
