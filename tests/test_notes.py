"""Signed notes, checkpoints and proofs as text: a published note, and no altered byte that is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pauseledger.infrastructure.merkle import Edge, Unproved, inclusion_proof, leaf_hash, tiled
from pauseledger.infrastructure.notes import Checkpoint, Proof, Signer, Verifier, hashes_as_text, open_note

# The example of the documentation of golang.org/x/mod/sumdb/note.
KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
SIGNATURE = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
SEED = bytes.fromhex("8428500b5514d8a33f244c80f5408af984a00000000000000000000000000000")
SIGNER = Signer("pauseledger/one", bytes(range(32)))
LEAVES = [leaf_hash(bytes([number])) for number in range(5)]


def proof(index=3):
    edge = Edge()
    edge.add(LEAVES)
    node = tiled(lambda row, number: LEAVES, len(LEAVES))
    head = SIGNER.sign(Checkpoint(SIGNER.name, len(LEAVES), edge.root()).text())
    return Proof(index, inclusion_proof(node, index, len(LEAVES)), head)


def test_the_published_note():
    key = Verifier.parse(KEY)
    assert str(key) == KEY
    assert open_note(f"{TEXT}\n{SIGNATURE}", [key]) == TEXT
    with pytest.raises(Unproved, match="not of this text"):
        open_note(f"{TEXT.replace('answer', 'Answer')}\n{SIGNATURE}", [key])


def test_a_note_signed_here_opens_and_witnesses_may_sign_as_well():
    note = SIGNER.sign(TEXT)
    witnessed = note + Signer("witness.example", bytes(32)).sign(TEXT).rpartition("\n\n")[2]
    assert open_note(witnessed, [SIGNER.verifier]) == TEXT
    assert open_note(witnessed, [Signer("witness.example", bytes(32)).verifier]) == TEXT
    assert Verifier.parse(str(SIGNER.verifier)) == SIGNER.verifier
    with pytest.raises(Unproved, match="no trusted key"):
        open_note(note, [Signer(SIGNER.name, bytes(32)).verifier])
    with pytest.raises(Unproved, match="no trusted key"):
        open_note(note, [Signer("pauseledger/two", SIGNER.seed).verifier])
    assert "seed" not in repr(SIGNER)


@pytest.mark.parametrize("text", ["no newline", "a tab\there\n", ""])
def test_what_cannot_stand_in_a_note_is_not_signed(text):
    with pytest.raises(ValueError, match="newline"):
        SIGNER.sign(text)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n\n",
        TEXT,
        f"{TEXT}\n",
        f"{TEXT}\n{SIGNATURE[:-1]}",
        f"{TEXT}\n- Peter AAAAAAA=\n",
        "a\0\n\n— b AAAAAAA=\n",
    ],
)
def test_what_is_no_note_is_told(note):
    with pytest.raises(Unproved, match="no signed note"):
        open_note(note, [Verifier.parse(KEY)])


@pytest.mark.parametrize(
    "line", ["", "name", KEY.replace("c74f", "c74e"), KEY[:-4], KEY.replace("+ARpc", "+BRpc"), f"a {KEY}"]
)
def test_what_is_no_key_is_told(line):
    with pytest.raises(Unproved, match="public key"):
        Verifier.parse(line)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\n",
        "a\n1\n",
        "a\n01\nAAAA\n",
        "a\n-1\nAAAA\n",
        "a\n1\nAAAA\n",
        "\n1\n" + "A" * 43 + "=\n",
        "a\n1\n" + "A" * 43 + "=\n\n",
    ],
)
def test_what_is_no_checkpoint_is_told(text):
    with pytest.raises(Unproved, match="no checkpoint"):
        Checkpoint.parse(text)


def test_a_head_of_another_log_is_not_taken_for_ours():
    note = SIGNER.sign(Checkpoint("pauseledger/two", 1, LEAVES[0]).text())
    with pytest.raises(Unproved, match="of pauseledger/two"):
        Checkpoint.open(note, [SIGNER.verifier])


@pytest.mark.parametrize("index", range(5))
def test_a_proof_is_a_file_that_proves_offline(index):
    text = proof(index).text()
    assert text.startswith(f"c2sp.org/tlog-proof@v1\nindex {index}\n")
    assert text.endswith(f"\n\n{proof().checkpoint}")
    assert Proof.parse(text).verify(LEAVES[index], [SIGNER.verifier]).size == 5
    assert Proof.parse(text.replace("\nindex", "\nextra AAAA\nindex")) == Proof.parse(text)
    with pytest.raises(Unproved):
        Proof.parse(text).verify(LEAVES[index - 1], [SIGNER.verifier])


def test_a_proof_of_the_only_leaf_has_no_path():
    head = SIGNER.sign(Checkpoint(SIGNER.name, 1, LEAVES[0]).text())
    assert Proof.parse(Proof(0, [], head).text()).verify(LEAVES[0], [SIGNER.verifier]).size == 1
    assert hashes_as_text(LEAVES[:2]).count("\n") == 2


@given(some.data())
def test_no_altered_byte_of_a_proof_or_its_head_is_believed(data):
    raw = bytearray(proof().text().encode())
    at = data.draw(some.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(some.integers(0, 7))
    with pytest.raises((Unproved, UnicodeDecodeError)):
        Proof.parse(raw.decode()).verify(LEAVES[3], [SIGNER.verifier])


@given(some.data())
def test_no_altered_character_of_a_key_is_read(data):
    line = str(SIGNER.verifier)
    at = data.draw(some.integers(0, len(line) - 1))
    other = data.draw(some.characters(min_codepoint=33, max_codepoint=126))
    changed = line[:at] + other + line[at + 1 :]
    if changed != line:
        with pytest.raises(Unproved):
            Verifier.parse(changed)
