"""A token opens exactly as it was minted, or it is forged, or it is not ours; there is nothing in between."""

import base64
import copy
import os
import pickle
import random
import re
import string
import traceback
import urllib.parse
import zlib
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from hypothesis import given
from hypothesis import strategies as st
from pauseledger.domain.envelope import Envelope, Opened, Terms, axis_tag, enclose, token_of
from pauseledger.domain.errors import InteractionConfigurationError, TokenForged
from pauseledger.infrastructure import seal as seal_module
from pauseledger.infrastructure.keys import Key, KeyRing
from pauseledger.infrastructure.seal import (
    ALPHABET,
    MOST_CHARS,
    TOKEN_CHARS,
    TOKEN_PATTERN,
    TokenSeal,
    base62_digits,
    base62_number,
)

#: How many mutated tokens one run tries.
MUTATIONS = 20_000

LEDGER = UUID("5b8f3f0a-6f0e-4c55-9d3b-0d2f7d1f6a10")
PAUSE = UUID("0043f0a1-6f0e-8c55-9d3b-0d2f7d1f6a11")
SECRET = bytes(range(32))
OTHER_SECRET = bytes(range(32, 64))
DIGITS = ALPHABET.decode()
SPACE = " \t\n\v\f\r"


def key(kid: str = "0a1b2c3d", secret: bytes = SECRET, state: str = "mints") -> Key:
    return Key(kid=kid, secret=secret, state=state)


def seal_of(*keys: Key, ledger: UUID = LEDGER, audience: str = "") -> TokenSeal:
    return TokenSeal(KeyRing(keys or [key()]), ledger_id=ledger, audience=audience)


def terms(**changes: object) -> Terms:
    fields = {
        "pause_id": PAUSE,
        "row_digest": b"r" * 16,
        "request_digest": b"q" * 16,
        "turn_digest": b"t" * 16,
        "scope": axis_tag("scope", PAUSE, "acme", None, None),
        "session": axis_tag("session", PAUSE, "s-1"),
        "run": axis_tag("run", PAUSE, "r-1"),
        "call": axis_tag("call", PAUSE, "c-1"),
        "opens": 1_760_000_000,
        "closes": 1_760_086_400,
        "generation": 1,
        "epoch": 40_000,
    }
    return Terms(**{**fields, **changes})


SEAL = seal_of()
TOKEN = SEAL.mint(terms()).token


def forged(text: str, seal: TokenSeal = SEAL) -> bool:
    """Tell whether `text` is refused as forged; any other exception fails the test that asked."""
    try:
        seal.open(text)
    except TokenForged as refusal:
        assert refusal.__context__ is None
        return True
    return False


def digits(number: int, width: int) -> str:
    """Base 62 the slow way, so that the product's fast way is held against it."""
    written = ""
    for _ in range(width):
        number, digit = divmod(number, 62)
        written = DIGITS[digit] + written
    assert number == 0
    return written


def number(text: str) -> int:
    """The other direction, as slowly."""
    value = 0
    for character in text:
        value = value * 62 + DIGITS.index(character)
    return value


def body_of(token: str) -> bytes:
    return number(token[4:-6]).to_bytes(142, "big")


def checked(body: str, prefix: str = "plp1") -> str:
    return prefix + body + digits(zlib.crc32((prefix + body).encode()), 6)


def spelled(body: bytes) -> str:
    return checked(digits(int.from_bytes(body, "big"), 191))


def mutated_tokens(token: str, count: int, seed: int) -> Iterator[str]:
    """Make `count` texts that are not `token`, the same ones for the same seed: in its text, and under its checksum."""
    chance = random.Random(seed)
    body = body_of(token)
    made = 0
    while made < count:
        mutant = chance.choice(MUTATORS)(chance, token, body)
        if mutant != token:
            made += 1
            yield mutant


def _substituted(chance: random.Random, token: str, body: bytes) -> str:
    characters = list(token)
    for at in chance.sample(range(4, len(token)), chance.choice((1, 1, 2, 5, 40))):
        characters[at] = chance.choice(DIGITS)
    return "".join(characters)


def _swapped(chance: random.Random, token: str, body: bytes) -> str:
    one, other = chance.sample(range(4, len(token)), 2)
    characters = list(token)
    characters[one], characters[other] = characters[other], characters[one]
    return "".join(characters)


def _shortened(chance: random.Random, token: str, body: bytes) -> str:
    start = chance.randrange(4, len(token))
    return token[:start] + token[start + chance.randint(1, 20) :]


def _lengthened(chance: random.Random, token: str, body: bytes) -> str:
    at = chance.randint(4, len(token))
    return token[:at] + "".join(chance.choices(DIGITS + "-_.~é", k=chance.randint(1, 20))) + token[at:]


def _bits_flipped(chance: random.Random, token: str, body: bytes) -> str:
    value = int.from_bytes(body, "big")
    for bit in chance.sample(range(8 * len(body)), chance.choice((1, 1, 2, 8, 300))):
        value ^= 1 << bit
    return spelled(value.to_bytes(len(body), "big"))


def _spliced(chance: random.Random, token: str, body: bytes) -> str:
    start = chance.randrange(len(body))
    size = chance.randint(1, len(body) - start)
    return spelled(body[:start] + chance.randbytes(size) + body[start + size :])


def _invented(chance: random.Random, token: str, body: bytes) -> str:
    kept = body[: chance.choice((0, 4, 16))]
    return spelled(kept + chance.randbytes(len(body) - len(kept)))


MUTATORS: tuple[Callable[[random.Random, str, bytes], str], ...] = (
    _substituted,
    _swapped,
    _shortened,
    _lengthened,
    _bits_flipped,
    _spliced,
    _invented,
)


# What is minted opens, to the same terms.

sealed_terms = st.builds(
    Terms,
    pause_id=st.uuids(),
    row_digest=st.binary(min_size=16, max_size=16),
    request_digest=st.binary(min_size=16, max_size=16),
    turn_digest=st.binary(min_size=16, max_size=16),
    scope=st.binary(min_size=8, max_size=8),
    session=st.binary(min_size=8, max_size=8),
    run=st.binary(min_size=8, max_size=8),
    call=st.binary(min_size=8, max_size=8),
    opens=st.integers(0, 2**40 - 1),
    closes=st.integers(0, 2**40 - 1),
    generation=st.integers(0, 2**16 - 1),
    epoch=st.integers(0, 2**16 - 1),
)


@given(
    sealed_terms, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.binary(min_size=32, max_size=32)
)
def test_whatever_is_sealed_opens_to_the_same_terms(said, audience, secret):
    seal = seal_of(key(secret=secret), audience=audience)
    minted = seal.mint(said)
    assert seal.open(minted.token) == Opened(said, "0a1b2c3d", minted.text_digest)
    assert re.fullmatch(TOKEN_PATTERN, minted.token)
    assert len(minted.token) == TOKEN_CHARS == 201


@given(st.integers(0, 62**191 - 1))
def test_base_62_is_what_pencil_and_paper_say(value):
    written = base62_digits(value, 191)
    assert written.decode() == digits(value, 191)
    assert base62_number(written) == value


@pytest.mark.parametrize("value", [0, 1, 61, 62, 62**4 - 1, 62**4, 256**142 - 1, 62**191 - 1])
def test_base_62_at_its_edges(value):
    assert base62_digits(value, 191).decode() == digits(value, 191)
    assert base62_number(digits(value, 191).encode()) == value


def test_the_layout_is_the_documented_one():
    body = body_of(TOKEN)
    parts = [b"plp1", bytes.fromhex("0a1b2c3d"), LEDGER.bytes, b"desk"]
    associated = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    said = terms(opens=1, closes=2, generation=3, epoch=4)
    clear = b"".join((
        PAUSE.bytes, said.row_digest, said.request_digest, said.turn_digest,
        said.scope, said.session, said.run, said.call,
        (1).to_bytes(5, "big"), (2).to_bytes(5, "big"), (3).to_bytes(2, "big"), (4).to_bytes(2, "big"),
    ))  # fmt: skip
    nonce = b"n" * 12
    by_hand = spelled(bytes.fromhex("0a1b2c3d") + nonce + AESGCMSIV(SECRET).encrypt(nonce, clear, associated))
    assert len(body) == 4 + 12 + 110 + 16
    assert seal_of(audience="desk").open(by_hand).terms == said


def test_two_tokens_of_the_same_terms_differ():
    assert len({SEAL.mint(terms()).token for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "change",
    [
        {"row_digest": b"short"},
        {"request_digest": b"l" * 17},
        {"turn_digest": b""},
        {"scope": b"s" * 7},
        {"call": b"c" * 9},
        {"opens": -1},
        {"closes": 2**40},
        {"generation": 2**16},
        {"epoch": -1},
    ],
)
def test_what_does_not_fit_is_not_cut_to_fit(change):
    with pytest.raises(InteractionConfigurationError, match=next(iter(change))):
        SEAL.mint(terms(**change))


# Forged: our prefix, and anything else than the very token.


def test_every_single_bit_flipped_under_a_right_checksum_is_forged():
    value = int.from_bytes(body_of(TOKEN), "big")
    assert spelled(value.to_bytes(142, "big")) == TOKEN
    assert all(forged(spelled((value ^ (1 << bit)).to_bytes(142, "big"))) for bit in range(142 * 8))


def test_every_single_character_substituted_is_forged():
    for at in range(4, len(TOKEN)):
        for other in DIGITS.replace(TOKEN[at], "") + "-_=.\0é\ud800":
            assert forged(TOKEN[:at] + other + TOKEN[at + 1 :]), at


def test_every_single_character_deleted_or_inserted_is_forged():
    for at in range(4, len(TOKEN)):
        assert forged(TOKEN[:at] + TOKEN[at + 1 :]), at
        assert forged(TOKEN[:at] + "0" + TOKEN[at:]), at
    assert forged(TOKEN + "0")


def test_every_truncation_is_forged_until_the_prefix_is_gone():
    assert all(forged(TOKEN[:size]) for size in range(4, len(TOKEN)))
    assert all(SEAL.open(TOKEN[:size]) is None for size in range(4))


def test_no_mutated_token_opens():
    tried = 0
    for mutant in mutated_tokens(TOKEN, MUTATIONS, seed=62):
        assert forged(mutant)
        tried += 1
    assert tried == MUTATIONS


def test_the_mutations_are_the_same_for_the_same_seed():
    assert list(mutated_tokens(TOKEN, 50, 7)) == list(mutated_tokens(TOKEN, 50, 7))
    assert list(mutated_tokens(TOKEN, 50, 7)) != list(mutated_tokens(TOKEN, 50, 8))


def test_a_second_spelling_of_the_same_bytes_is_forged():
    value = int.from_bytes(body_of(TOKEN), "big")
    beyond = value + 256**142
    assert beyond < 62**191
    assert forged(checked(digits(beyond, 191)))
    assert forged(checked("0" + digits(value, 191)))


@pytest.mark.parametrize("other", ["-", "_", "é", "٠"])
def test_a_character_outside_the_alphabet_is_forged_even_under_a_right_checksum(other):
    # The body of a low key id begins with a zero, which a careless reader would take any stray character for.
    seal = seal_of(key("00000001"))
    body = seal.mint(terms()).token[4:-6]
    assert body.startswith("0")
    assert seal.open(checked(body))
    assert forged(checked(other + body[1:]), seal)


def test_a_token_of_another_ledger_is_forged():
    assert forged(TOKEN, seal_of(ledger=UUID(int=LEDGER.int + 1)))


def test_a_token_for_another_audience_is_forged():
    assert forged(TOKEN, seal_of(audience="staging"))
    assert forged(seal_of(audience="staging").mint(terms()).token)


def test_a_token_of_another_key_is_forged_even_under_the_same_id():
    assert forged(TOKEN, seal_of(key("ffffffff", OTHER_SECRET)))
    assert forged(TOKEN, seal_of(key(secret=OTHER_SECRET)))


def test_a_token_claiming_another_key_of_the_ring_is_forged():
    seal = seal_of(key(), key("ffffffff", SECRET, "opens"))
    assert forged(spelled(bytes.fromhex("ffffffff") + body_of(TOKEN)[4:]), seal)


@pytest.mark.parametrize("kid", [b"\0\0\0\0", b"../.", b"/etc", b"%s%s", b"\xff\xff\xff\xff", b"' OR"])
def test_a_crafted_key_id_is_only_a_key_id(kid, monkeypatch):
    crafted = spelled(kid + body_of(TOKEN)[4:])
    monkeypatch.setattr(os, "open", lambda *_, **__: pytest.fail("a key id was looked up by a path"))
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a key id was looked up by a path"))
    assert forged(crafted)


def test_a_key_that_only_opens_opens_and_a_retired_one_does_not():
    newer = key("ffffffff", OTHER_SECRET)
    assert seal_of(newer, key(state="opens")).open(TOKEN).kid == "0a1b2c3d"
    assert forged(TOKEN, seal_of(newer, key(state="retired")))


def test_a_seal_follows_its_ring_when_a_key_is_retired_or_replaced(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pauseledger.infrastructure.keys.monotonic", lambda: now[0])
    newer = key("ffffffff", OTHER_SECRET)
    ring = [key()]
    seal = TokenSeal(KeyRing(ring, reload=lambda: ring), ledger_id=LEDGER)
    token = seal.mint(terms()).token
    ring[:] = [newer, key(state="retired")]
    assert seal.open(token)
    now[0] += 61
    assert forged(token, seal)
    assert seal.mint(terms()).kid == "ffffffff"
    ring[:] = [key("ffffffff", SECRET)]
    now[0] += 61
    assert seal_of(key("ffffffff", SECRET)).open(seal.mint(terms()).token)


# Mangled in transit: the stated rule.


@pytest.mark.parametrize(
    "mangled",
    [
        TOKEN + "\n",
        TOKEN + "\r\n",
        f" \t{TOKEN}\v\f ",
        TOKEN[:70] + "\r\n" + TOKEN[70:140] + "\r\n\t" + TOKEN[140:],
        "p l\np\t1" + TOKEN[4:],
        " ".join(TOKEN),
        urllib.parse.unquote(urllib.parse.quote(TOKEN, safe="")),
        urllib.parse.unquote_plus(urllib.parse.quote_plus(TOKEN + "\n")),
    ],
    ids=["newline", "crlf", "around", "wrapped", "in the prefix", "everywhere", "quoted", "form-encoded"],
)
def test_white_space_is_removed_wherever_it_stands(mangled):
    opened = SEAL.open(mangled)
    assert opened == SEAL.open(TOKEN)


@given(st.lists(st.tuples(st.integers(0, TOKEN_CHARS), st.text(SPACE, max_size=3)), max_size=20))
def test_white_space_never_matters(spaces):
    text = TOKEN
    for at, space in spaces:
        text = text[:at] + space + text[at:]
    assert SEAL.open(text) == SEAL.open(TOKEN)


@pytest.mark.parametrize("space", ["\u00a0", "\u200b", "\u2028", "\x1c", "\x85", "\ufeff", "\0", "+", "%20", "=\n"])
def test_nothing_but_ascii_white_space_is_removed(space):
    assert forged(TOKEN[:100] + space + TOKEN[100:])
    assert forged(TOKEN + space)
    assert SEAL.open(space + TOKEN) is None


def test_url_encoding_leaves_a_token_as_it_is():
    assert urllib.parse.quote(TOKEN, safe="") == urllib.parse.quote_plus(TOKEN) == TOKEN


def test_letter_case_is_part_of_a_token():
    assert forged(TOKEN.lower())
    assert forged("plp1" + TOKEN[4:].upper())
    assert forged("plp1" + TOKEN[4:].swapcase())
    assert SEAL.open(TOKEN.upper()) is None
    assert SEAL.open("Plp1" + TOKEN[4:]) is None


@pytest.mark.parametrize("version", "023456789")
def test_another_version_is_ours_and_forged(version):
    assert forged(f"plp{version}" + TOKEN[4:])
    assert forged(checked(TOKEN[4:-6], f"plp{version}"))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\n", "p", "pl", "plp", "plp ", "plp\n", "plpgsql", "PLP1", "plp_1", "plp-1", "xplp1", "Bearer plp1", "plp١",
        "plp²", "\ufeffplp1", "pｌp1", "sk-123", "eyJhbGciOiJub25lIn0.e30.", "\ud800", "\0plp1", " " * 100_000, "a" * 100_000,
        "p" + " " * 100_000, TOKEN[1:], "/" + TOKEN, TOKEN[::-1] + "x",
    ],
)  # fmt: skip
def test_what_lacks_our_prefix_is_not_ours(text):
    assert SEAL.open(text) is None


@given(st.text())
def test_any_text_is_not_ours_or_forged(text):
    bare = "".join(c for c in text if c not in SPACE)
    ours = bare.startswith("plp") and bare[3:4] in tuple(string.digits)
    assert forged(text) == ours
    assert forged("plp1" + text)


def test_text_too_long_is_forged_unread(monkeypatch):
    most = "plp1" + " " * (MOST_CHARS - TOKEN_CHARS + 4) + TOKEN[4:]
    assert SEAL.open(most).pause_id == PAUSE
    monkeypatch.setattr(TokenSeal, "_unsealed", lambda *_: pytest.fail("it was read"))
    assert forged(most + " ")
    assert forged(" " * 10_000 + "plp1" + "0" * 10_000_000)


@pytest.mark.parametrize("text", [None, 1, TOKEN.encode(), bytearray(TOKEN.encode()), [TOKEN], enclose(TOKEN)])
def test_what_is_no_text_is_the_hosts_mistake(text):
    with pytest.raises(InteractionConfigurationError, match=f"as text .str., not {type(text).__name__}$"):
        SEAL.open(text)


# Nothing is shown.


def test_no_secret_and_no_token_is_shown():
    minted = SEAL.mint(terms())
    shown = f"{minted!r} {minted} {SEAL!r} {SEAL.open(minted.token)!r} {SEAL._ring!r} {key()!r} {list(SEAL._ring)!r}"
    assert minted.token not in shown
    assert minted.token[4:40] not in shown
    for spelling in (repr(SECRET), SECRET.hex(), base64.urlsafe_b64encode(SECRET).decode()):
        assert spelling not in shown


def test_a_refusal_shows_no_token():
    broken = TOKEN[:-1] + ("0" if TOKEN[-1] != "0" else "1")
    with pytest.raises(TokenForged) as caught:
        SEAL.open(broken)
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    assert caught.value.pause_id is None
    assert broken[:20] not in told


def test_a_token_that_was_opened_before_is_forged_once_its_key_is_retired():
    keys = [Key(kid="aaaaaaaa", secret=SECRET, state="opens"), Key(kid="bbbbbbbb", secret=SECRET[::-1], state="mints")]
    ring = KeyRing(keys)
    seal = TokenSeal(ring, ledger_id=LEDGER)
    token = (
        TokenSeal(KeyRing([Key(kid="aaaaaaaa", secret=SECRET, state="mints")]), ledger_id=LEDGER).mint(terms()).token
    )
    assert seal.open(token) == seal.open(f" {token}\n")
    ring._keys["aaaaaaaa"] = Key(kid="aaaaaaaa", secret=SECRET, state="retired")
    with pytest.raises(TokenForged):
        seal.open(token)


def test_tokens_remembered_are_bounded_and_not_kept_as_text(monkeypatch):
    monkeypatch.setattr(seal_module, "SEEN", 8)
    seal = TokenSeal(KeyRing.ephemeral(), ledger_id=LEDGER)
    tokens = [seal.mint(terms()).token for _ in range(50)]
    assert all(seal.open(token) == seal.open(token) for token in tokens)
    assert 0 < len(seal._seen) <= 8
    assert not any(token.encode() in name for token in tokens for name in seal._seen)


def test_an_audience_has_to_be_text():
    with pytest.raises(InteractionConfigurationError, match="audience"):
        seal_of(audience="\ud800")


def test_an_openssl_without_the_cipher_is_named(monkeypatch):
    def unsupported(_secret: bytes) -> None:
        raise UnsupportedAlgorithm("no")

    monkeypatch.setattr(seal_module, "AESGCMSIV", unsupported)
    with pytest.raises(InteractionConfigurationError, match="OpenSSL before 3.2"):
        seal_of()


# The envelope: a token recognised, and nothing anybody can make or read.


def test_an_envelope_cannot_be_made_by_hand():
    with pytest.raises(InteractionConfigurationError):
        Envelope()
    with pytest.raises(TypeError):
        Envelope(TOKEN)
    with pytest.raises(InteractionConfigurationError):
        type("Mine", (Envelope,), {})


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_envelope_cannot_be_pickled_or_copied(copied):
    with pytest.raises(TypeError, match="keep the token"):
        copied(enclose(TOKEN))


@pytest.mark.parametrize("name", ["_token", "token", "pause_id"])
def test_an_envelope_cannot_be_changed(name):
    with pytest.raises(AttributeError):
        setattr(enclose(TOKEN), name, "x")


def test_an_envelope_shows_nothing():
    envelope = enclose(TOKEN)
    assert f"{envelope!r} {envelope}" == "<Envelope> <Envelope>"
    assert not hasattr(envelope, "__dict__")
    assert token_of(envelope) == TOKEN


@pytest.mark.parametrize("other", [TOKEN, None, object()])
def test_only_an_envelope_gives_its_token_back(other):
    with pytest.raises(InteractionConfigurationError) as caught:
        token_of(other)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("axis", ["scope", "session", "run", "call"])
def test_an_opened_token_binds_its_own_parts_only(axis):
    opened = SEAL.open(TOKEN)
    own = {"scope": ("acme", None, None), "session": ("s-1",), "run": ("r-1",), "call": ("c-1",)}[axis]
    assert opened.binds(axis, *own)
    for other in [("x",), (), (*own, None), (own[0], ""), ("",), (None,), ("\ud800",)]:
        assert not opened.binds(axis, *other)
