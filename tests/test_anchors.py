"""Anchors: a file, a git repository, an endpoint, time stamps by a local authority; and what the notary does with them."""

import http.server
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import pytest
from pauseledger.domain.errors import InteractionConfigurationError
from pauseledger.infrastructure import anchors
from pauseledger.infrastructure.anchors import (
    AnchorUnavailable,
    FileAnchor,
    GitAnchor,
    HttpsAnchor,
    TimestampAnchor,
    anchor_of,
    verify_stamp,
)
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.merkle import Unproved
from pauseledger.infrastructure.notary import AnchorsSilent, Notary
from pauseledger.infrastructure.notes import Checkpoint, Signer
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.sealer import Sealer
from pauseledger.infrastructure.testing import row

SIGNER = Signer("pauseledger/one", bytes(range(32)))


def head(size=1, root=bytes(32)):
    return SIGNER.sign(Checkpoint(SIGNER.name, size, root).text())


class Heard:
    def __init__(self):
        self.notes = []

    def note(self, decision, **fields):
        self.notes.append((decision, fields))


@contextmanager
def endpoint(answer):
    """A server whose `answer(handler, body)` says what comes back."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self, None)

        def do_POST(self):
            answer(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_):
            """Print nothing."""

        def say(self, code, body=b"", **headers):
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/heads"
        server.shutdown()


def git(folder, *arguments):
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True).stdout.decode()


def test_a_file_holds_the_newest_head(tmp_path):
    anchor = anchor_of((tmp_path / "away" / "head.txt").as_uri())
    assert isinstance(anchor, FileAnchor)
    assert anchor.newest() is None
    for size in (1, 2):
        anchor.publish(head(size))
        assert anchor.newest() == head(size)
    assert [one.name for one in (tmp_path / "away").iterdir()] == ["head.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(AnchorUnavailable, match="cannot be written"):
        FileAnchor(tmp_path / "file" / "head.txt").publish(head())


def test_a_repository_holds_a_commit_a_head(tmp_path):
    git(tmp_path, "init", "--quiet")
    anchor = anchor_of(f"git://{tmp_path}")
    assert isinstance(anchor, GitAnchor)
    assert anchor.newest() is None
    for size in (1, 2, 2):
        anchor.publish(head(size))
        assert anchor.newest() == head(size)
    assert git(tmp_path, "log", "--format=%s").splitlines() == ["Tree head of 2 leaves", "Tree head of 1 leaves"]
    assert git(tmp_path, "show", "HEAD~1:head.txt") == head(1)
    with pytest.raises(AnchorUnavailable, match="repository of yours"):
        GitAnchor(tmp_path / "nowhere").newest()


def test_an_endpoint_is_sent_each_head_and_asked_for_the_newest():
    kept = []

    def answer(handler, body):
        if body is not None:
            kept.append((handler.headers["Content-Type"], body.decode()))
        handler.say(200 if kept else 404, kept[-1][1].encode() if kept else b"")

    with endpoint(answer) as url:
        anchor = anchor_of(url)
        assert isinstance(anchor, HttpsAnchor)
        assert anchor.newest() is None
        anchor.publish(head(3))
        assert anchor.newest() == head(3)
    assert kept == [("text/plain; charset=utf-8", head(3))]
    with pytest.raises(AnchorUnavailable, match="cannot be reached"):
        anchor.publish(head(4))


@pytest.mark.parametrize("code", [302, 500])
def test_an_endpoint_that_fails_or_leads_away_is_unavailable(code):
    with endpoint(lambda handler, _: handler.say(code, Location="http://127.0.0.1:1/")) as url:
        for call in (lambda: anchor_of(url).publish(head()), lambda: anchor_of(url).newest()):
            with pytest.raises(AnchorUnavailable, match=f"answered {code}"):
                call()


def test_an_endpoint_that_drips_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(anchors, "DEADLINE", 0.3)

    def drip(handler, _):
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(100):
                handler.wfile.write(b".")
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            return

    with endpoint(drip) as url, pytest.raises(AnchorUnavailable, match="TimeoutError"):
        anchor_of(url).newest()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "head.txt",
        "file://host/path",
        "http://example.com/",
        "ftp://x/y",
        "tsa+https://example.com/",
        "git:relative",
        "https://[example.com/",
        "https://example.com:port/",
    ],
)
def test_what_is_no_anchor_is_told(url):
    with pytest.raises(InteractionConfigurationError, match="an anchor is file:"):
        anchor_of(url)


@pytest.mark.parametrize("scheme", ["https", "tsa+https", "git", "file"])
@pytest.mark.parametrize("who", ["bot:s3cret", "s3cret", ":s3cret"])
def test_a_name_and_a_password_are_refused_and_not_quoted(scheme, who):
    with pytest.raises(InteractionConfigurationError, match=r"out of the URL of the anchor at example\.com") as caught:
        anchor_of(f"{scheme}://{who}@example.com/x?into=/a&roots=/b")
    assert "s3cret" not in str(caught.value)


def test_an_endpoint_is_named_by_its_host_alone():
    for path in ("/s3cret?key=s3cret", "/\u00e4s3cret", "/s3 cret"):
        anchor = anchor_of(f"http://127.0.0.1:1{path}")
        for call in (anchor.newest, lambda anchor=anchor: anchor.publish(head())):
            with pytest.raises(AnchorUnavailable, match=r"the anchor https 127\.0\.0\.1 cannot be reached") as caught:
                call()
            assert "cret" not in str(caught.value)


@pytest.mark.parametrize(("roots", "says"), [(None, "cannot be read"), (b"no PEM", "no certificates in PEM")])
def test_roots_that_are_none_are_told_when_the_anchor_is_made(tmp_path, roots, says):
    if roots is not None:
        (tmp_path / "roots.pem").write_bytes(roots)
    with pytest.raises(InteractionConfigurationError, match=says):
        anchor_of(f"tsa+https://example.com/?into={tmp_path}&roots={tmp_path / 'roots.pem'}")


def test_an_extra_that_is_missing_is_told_when_the_anchor_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rfc3161_client", None)
    with pytest.raises(InteractionConfigurationError, match="timestamps"):
        anchor_of(f"tsa+https://example.com/?into={tmp_path}&roots={tmp_path / 'roots.pem'}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A time stamp authority of our own: openssl's, behind an endpoint."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to stamp with")
    folder = tmp_path_factory.mktemp("tsa")
    (folder / "tsa.cnf").write_text(
        "[ca]\nbasicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n"
        "[tsa]\nbasicConstraints=CA:false\nextendedKeyUsage=critical,timeStamping\nkeyUsage=critical,digitalSignature\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        "[tsa_config]\nserial=serial\ncrypto_device=builtin\nsigner_cert=tsa.pem\nsigner_key=tsa.key\n"
        "signer_digest=sha256\ndefault_policy=1.2.3.4.1\ndigests=sha256\naccuracy=secs:1\ness_cert_id_alg=sha256\n"
    )
    (folder / "serial").write_text("01")

    def openssl(*arguments, given=None):
        done = subprocess.run(["openssl", *arguments], cwd=folder, input=given, check=True, capture_output=True)
        return done.stdout

    for name in ("ca", "tsa"):
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    openssl("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=Test CA", "-days", "2", "-out", "ca.pem", "-config", "tsa.cnf", "-extensions", "ca")  # fmt: skip
    openssl("req", "-new", "-key", "tsa.key", "-subj", "/CN=Test TSA", "-out", "tsa.csr", "-config", "tsa.cnf")
    openssl("x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "tsa.cnf", "-extensions", "tsa", "-out", "tsa.pem")  # fmt: skip

    def answer(handler, body):
        (folder / "query.tsq").write_bytes(body)
        said = openssl("ts", "-reply", "-config", "tsa.cnf", "-section", "tsa_config", "-queryfile", "query.tsq")
        handler.say(200, said, Content_Type="application/timestamp-reply")

    with endpoint(answer) as url:
        yield url, folder / "ca.pem"


def test_a_head_is_stamped_and_the_stamp_verified(authority, tmp_path):
    url, roots = authority
    anchor = anchor_of(f"tsa+{url}?into={tmp_path / 'stamps'}&roots={roots}")
    assert isinstance(anchor, TimestampAnchor)
    assert anchor.newest() is None
    for size in (9, 10):
        anchor.publish(head(size))
        assert anchor.newest() == head(size)
    stamp = (tmp_path / "stamps" / "9.tsr").read_bytes()
    assert abs(verify_stamp(stamp, head(9), roots.read_bytes()).timestamp() - time.time()) < 600
    with pytest.raises(Unproved, match="does not hold"):
        verify_stamp(stamp, head(10), roots.read_bytes())
    with pytest.raises(Unproved, match="does not hold"):
        verify_stamp(stamp, head(9), roots.read_bytes(), nonce=7)
    for at in range(0, len(stamp), 97):
        changed = bytearray(stamp)
        changed[at] ^= 1
        with pytest.raises(Unproved):
            verify_stamp(bytes(changed), head(9), roots.read_bytes(), nonce=7)


def test_a_stamp_that_does_not_hold_is_an_anchor_that_does_not_speak(authority, tmp_path):
    with endpoint(lambda handler, _: handler.say(200, b"no stamp")) as url:
        anchor = anchor_of(f"tsa+{url}?into={tmp_path / 'stamps'}&roots={authority[1]}")
        with pytest.raises(AnchorUnavailable, match="no stamp that can be kept"):
            anchor.publish(head())
    assert anchor.newest() is None


def notary(recorder, *kept, **options):
    heard = Heard()
    return Notary(Sealer(sealed_rows(recorder), SIGNER.name, SIGNER), kept, heard, **options), heard


def recorder_of(count):
    recorder = MemoryRecorder()
    recorder.insert_events([row(uuid4(), 1, b"PLF1" + at.to_bytes(32, "big")) for at in range(count)])
    return recorder


def test_a_rollback_is_found_before_anything_is_signed(tmp_path):
    kept = FileAnchor(tmp_path / "head.txt")
    whole = recorder_of(5)
    notary(whole, kept)[0].seal()
    was = kept.newest()
    assert Checkpoint.of(was).size == 5
    for rolled_back in (4, 6):
        recorder = recorder_of(rolled_back)
        if rolled_back == 6:
            recorder.insert_events([row(uuid4(), 1, b"PLF1" + b"F" * 32)])
            recorder._stored_events[2] = recorder._stored_events[6]
        with pytest.raises(Unproved, match=r"head\.txt"):
            notary(recorder, kept)[0].seal()
        assert kept.newest() == was
        assert sealed_rows(recorder).newest_head() is None


def test_an_anchor_that_is_silent_keeps_a_head_from_no_other(tmp_path):
    (tmp_path / "file").write_text("")
    silent, kept = FileAnchor(tmp_path / "file" / "head.txt"), FileAnchor(tmp_path / "head.txt")
    silent.newest = lambda: None
    recorder = recorder_of(3)
    one, heard = notary(recorder, silent, kept)
    with pytest.raises(AnchorUnavailable):
        one.seal()
    assert Checkpoint.of(kept.newest()).size == 3
    assert [word for word, _ in heard.notes] == ["anchor_unavailable"]


class Broken:
    """An anchor of a host's own."""

    name = "ours"

    def __init__(self, error):
        self.error = error

    def newest(self):
        raise self.error

    publish = newest


SILENT = [AnchorUnavailable("gone"), FileNotFoundError("roots.pem"), InteractionConfigurationError("x"), KeyError("x")]


@pytest.mark.parametrize("error", SILENT, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("first", [True, False])
def test_an_anchor_that_is_silent_from_the_start_keeps_no_head_from_the_others(tmp_path, error, first):
    silent, kept = Broken(error), FileAnchor(tmp_path / "head.txt")
    for step in ("tick", "seal"):
        recorder = recorder_of(3)
        one, heard = notary(recorder, *((silent, kept) if first else (kept, silent)))
        if step == "tick":
            assert one.tick() == 3
        else:
            with pytest.raises(AnchorsSilent, match="ours") as told:
                one.seal()
            assert (told.value.done.size, told.value.done.head) == (3, kept.newest())
        assert sealed_rows(recorder).newest_head().size == Checkpoint.of(kept.newest()).size == 3
        assert [(word, fields["anchor"]) for word, fields in heard.notes] == [("anchor_unavailable", "ours")]
        (tmp_path / "head.txt").unlink()


def test_an_anchor_that_does_not_say_what_it_keeps_is_sent_nothing(tmp_path):
    kept = FileAnchor(tmp_path / "head.txt")
    kept.publish(head(9))

    def silent():
        raise AnchorUnavailable("gone")

    kept.newest = silent
    notary(recorder_of(3), kept)[0].tick()
    assert (tmp_path / "head.txt").read_text() == head(9)


def test_while_following_the_tree_is_held_against_the_anchors_before_each_head_that_goes_out(tmp_path, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.notary.HEAD", 0.0)
    kept, recorder = FileAnchor(tmp_path / "head.txt"), recorder_of(3)
    one, heard = notary(recorder, kept)
    one.tick()
    assert Checkpoint.of(kept.newest()).size == 3
    kept.publish(head(3))
    recorder.insert_events([row(uuid4(), 1, b"PLF1" + b"x" * 32)])
    one.tick()
    assert [word for word, _ in heard.notes] == ["sealed_log_broken"]
    assert (sealed_rows(recorder).newest_head().size, kept.newest()) == (3, head(3))
    monkeypatch.setattr(one, "_not_before", 0.0)
    one.tick()
    assert (sealed_rows(recorder).newest_head().size, kept.newest()) == (3, head(3))


def test_while_following_heads_go_out_when_it_is_time(tmp_path, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.notary.HEAD", 0.0)
    kept, recorder = FileAnchor(tmp_path / "head.txt"), recorder_of(3)
    one, _ = notary(recorder, kept, anchor_seconds=3600)
    assert [one.tick(), one.tick()] == [3, 0]
    recorder.insert_events([row(uuid4(), 1, b"PLF1" + b"x" * 32)])
    assert one.tick() == 1
    assert sealed_rows(recorder).newest_head().size == 4
    assert Checkpoint.of(kept.newest()).size == 3


def test_while_following_what_does_not_hold_is_an_alarm_and_nothing_is_signed(tmp_path):
    kept, recorder = FileAnchor(tmp_path / "head.txt"), recorder_of(3)
    kept.publish(head(2))
    one, heard = notary(recorder, kept)
    assert [one.tick(), one.tick()] == [0, 0]
    assert [word for word, _ in heard.notes] == ["sealed_log_broken"]
    assert sealed_rows(recorder).newest_head() is None
