"""Tokens: what a pause says about itself, sealed so that nobody can read, change or invent it.

A token is 201 letters and digits:

    plp1 | body (191) | checksum (6)

The body is the number whose big-endian bytes are: key id 4, nonce 12, then AES-256-GCM-SIV (RFC 8452) over pause
id 16, digest of the `Paused` row 16, of the request 16, of the turn 16, the axis tags of scope, session, run and call
8 each, opens and closes as u40 (Unix seconds), generation u16, epoch u16, and the cipher's tag 16. It is written
in base 62 (0-9, A-Z, a-z, most significant digit first), always 191 digits. The checksum is CRC-32 (as in zlib) of
prefix and body, 6 digits of the same kind; it lets a scanner for leaked secrets tell a token from noise and proves
nothing. The seal also covers, unsealed: prefix, key id, ledger id and audience.

What a mangled token is, by rule:

- ASCII white space (space, tab, line feed, vertical tab, form feed, carriage return) is removed wherever it stands,
  before anything else, because mail programs wrap lines. Nothing else is tolerated.
- Text is ours when it then begins with `plp` and a digit 0 to 9, its version. `plpgsql`, `PLP1...`, `plp` are not.
- Ours, and not exactly as it was minted, is forged: another version, letter case, length, character, checksum, key,
  ledger or audience. So is anything with more than 4096 characters behind the prefix, white space included; such text
  is not read.
- URL encoding leaves a token as it is.
"""

import hashlib
import os
import re
import zlib
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from ..domain.envelope import DIGEST_BYTES, TAG_BYTES, Opened, Terms, length_prefixed
from ..domain.errors import InteractionConfigurationError, TokenForged
from ..domain.ports import Minted
from .keys import KID_BYTES, Key, KeyRing

PREFIX = "plp1"
ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
NONCE_BYTES = 12
SEAL_BYTES = 16
#: Text with more characters than this behind the prefix is forged unread.
MOST_CHARS = 4096
#: Of so many tokens it is remembered what they say.
SEEN = 512

_TIME_BYTES = 5
_TERMS = Struct(">16s" + f"{DIGEST_BYTES}s" * 3 + f"{TAG_BYTES}s" * 4 + f"{_TIME_BYTES}s" * 2 + "HH")
_BODY_BYTES = KID_BYTES + NONCE_BYTES + _TERMS.size + SEAL_BYTES
_BODY_DIGITS = 191
_CHECKSUM_DIGITS = 6
TOKEN_CHARS = len(PREFIX) + _BODY_DIGITS + _CHECKSUM_DIGITS
#: What a scanner for leaked secrets looks for; the checksum tells the rest.
TOKEN_PATTERN = rf"\b{PREFIX}[0-9A-Za-z]{{{_BODY_DIGITS + _CHECKSUM_DIGITS}}}\b"

_SPACE = " \t\n\v\f\r"
_SPACES = re.compile(rf"[{_SPACE}]+")
# Finds the prefix without copying the text, however long it is.
_OURS = re.compile(rf"[{_SPACE}]*+p[{_SPACE}]*+l[{_SPACE}]*+p[{_SPACE}]*+[0-9]")

# In the order in which they are sealed.
_SIZES = {
    **dict.fromkeys(("row_digest", "request_digest", "turn_digest"), DIGEST_BYTES),
    **dict.fromkeys(("scope", "session", "run", "call"), TAG_BYTES),
}
_BITS = {"opens": 8 * _TIME_BYTES, "closes": 8 * _TIME_BYTES, "generation": 16, "epoch": 16}


class _Cipher(NamedTuple):
    key: Key
    aead: AESGCMSIV
    associated: bytes


class TokenSeal:
    """Mints tokens and opens them, for one ledger and one audience. Safe to use from several threads.

    Raises:
        InteractionConfigurationError: the audience is not text, or this Python's OpenSSL has no AES-GCM-SIV.
    """

    def __init__(self, ring: KeyRing, *, ledger_id: UUID, audience: str = "") -> None:
        self._ring = ring
        self._ledger_id = ledger_id
        self._audience = _encoded(audience)
        self._ciphers: dict[str, _Cipher] = {}
        #: By the digest of a token's text, never by the text: what it said, and the very key that opened it.
        self._seen: dict[bytes, tuple[Key, Opened]] = {}
        self._cipher(ring.minting)

    def __repr__(self) -> str:
        return f"<TokenSeal of ledger {self._ledger_id}>"

    def minting_kid(self) -> str:
        """Name the key that seals now (8 hex)."""
        return self._ring.minting.kid

    def mint(self, terms: Terms) -> Minted:
        """Seal the terms under the key that mints. Two tokens of the same terms differ (the nonce is random).

        Raises:
            InteractionConfigurationError: a digest, tag, time or count does not fit its place in the token.
        """
        clear = _packed(terms)
        key, aead, associated = self._cipher(self._ring.minting)
        nonce = os.urandom(NONCE_BYTES)
        body = bytes.fromhex(key.kid) + nonce + aead.encrypt(nonce, clear, associated)
        text = _checked(PREFIX.encode() + base62_digits(int.from_bytes(body, "big"), _BODY_DIGITS))
        return Minted(text.decode(), key.kid, hashlib.sha256(text).digest())

    def open(self, text: str) -> Opened | None:
        """Open a token. None only where our prefix is absent, so that the text may be somebody else's.

        The digest in the result is that of the token without white space, equal to the minted one's.

        Raises:
            TokenForged: our prefix, but not our seal (the module's rules).
            InteractionConfigurationError: `text` is not a str.
        """
        if not isinstance(text, str):
            raise InteractionConfigurationError(f"pass the token as text (str), not {type(text).__name__}")
        ours = _OURS.match(text)
        if ours is None:
            return None
        if len(text) - ours.end() > MOST_CHARS:
            raise TokenForged
        # Where nothing but letters and digits stands, there is no white space to remove.
        token = text if text.isalnum() else _SPACES.sub("", text)
        opened = self._seen_before(token) or self._unsealed(token)
        if opened is None:
            raise TokenForged
        return opened

    def _seen_before(self, token: str) -> Opened | None:
        """Find a token that opened a moment ago, as every one did that is redeemed: its key has to open still."""
        seen = self._seen.get(hashlib.sha256(token.encode(errors="replace")).digest())
        return seen[1] if seen is not None and self._ring.by_kid(seen[1].kid) is seen[0] else None

    def _unsealed(self, token: str) -> Opened | None:
        if len(token) != TOKEN_CHARS or not token.startswith(PREFIX) or not (token.isascii() and token.isalnum()):
            return None
        text = token.encode()
        if text != _checked(text[:-_CHECKSUM_DIGITS]):
            return None
        number = base62_number(text[len(PREFIX) : -_CHECKSUM_DIGITS])
        # 191 digits reach a little further than the bytes do: one number must not have two spellings.
        return None if number >> (8 * _BODY_BYTES) else self._opened(number.to_bytes(_BODY_BYTES, "big"), text)

    def _opened(self, body: bytes, text: bytes) -> Opened | None:
        key = self._ring.by_kid(body[:KID_BYTES])
        if key is None:
            return None
        _, aead, associated = self._cipher(key)
        nonce, sealed = body[KID_BYTES : KID_BYTES + NONCE_BYTES], body[KID_BYTES + NONCE_BYTES :]
        try:
            clear = aead.decrypt(nonce, sealed, associated)
        except InvalidTag:
            return None
        opened = Opened(_unpacked(clear), key.kid, hashlib.sha256(text).digest())
        if len(self._seen) >= SEEN:
            self._seen.clear()
        self._seen[opened.text_digest] = key, opened
        return opened

    def _cipher(self, key: Key) -> _Cipher:
        cipher = self._ciphers.get(key.kid)
        # A ring read again brings new keys; a cipher serves the very key it was made of.
        if cipher is None or cipher.key is not key:
            associated = length_prefixed(PREFIX, bytes.fromhex(key.kid), self._ledger_id.bytes, self._audience)
            cipher = self._ciphers[key.kid] = _Cipher(key, _aead(key.secret), associated)
        return cipher


def _encoded(audience: str) -> bytes:
    try:
        return audience.encode()
    except UnicodeEncodeError:
        raise InteractionConfigurationError("audience holds a lone surrogate, which is not text") from None


def _aead(secret: bytes) -> AESGCMSIV:
    try:
        return AESGCMSIV(secret)
    except UnsupportedAlgorithm:
        raise InteractionConfigurationError(
            "the `cryptography` installed has no AES-GCM-SIV (it was built with an OpenSSL before 3.2); "
            "install its wheel from PyPI"
        ) from None


def _packed(terms: Terms) -> bytes:
    for name, size in _SIZES.items():
        if len(getattr(terms, name)) != size:
            raise InteractionConfigurationError(f"{name} must have {size} bytes to be sealed")
    for name, bits in _BITS.items():
        if getattr(terms, name) >> bits:
            raise InteractionConfigurationError(f"{name} must be from 0 to {2**bits - 1} to be sealed")
    return _TERMS.pack(
        terms.pause_id.bytes,
        *(getattr(terms, name) for name in _SIZES),
        terms.opens.to_bytes(_TIME_BYTES, "big"),
        terms.closes.to_bytes(_TIME_BYTES, "big"),
        terms.generation,
        terms.epoch,
    )


def _unpacked(clear: bytes) -> Terms:
    pause_id, row, request, turn, scope, session, run, call, opens, closes, generation, epoch = _TERMS.unpack(clear)
    return Terms(
        UUID(bytes=pause_id),
        row,
        request,
        turn,
        scope,
        session,
        run,
        call,
        int.from_bytes(opens, "big"),
        int.from_bytes(closes, "big"),
        generation,
        epoch,
    )


def _checked(text: bytes) -> bytes:
    return text + base62_digits(zlib.crc32(text), _CHECKSUM_DIGITS)


# Base 62, fast: a token is judged in microseconds, so digits are not taken one by one.

_PAIRS = [bytes((high, low)) for high in ALPHABET for low in ALPHABET]
_VALUES = bytes(max(ALPHABET.find(character), 0) for character in range(256))


def base62_digits(number: int, width: int) -> bytes:
    """Write a number in base 62 in exactly `width` digits, four at a time. It must fit."""
    pairs: list[bytes] = []
    for _ in range(0, width, 4):
        number, four = divmod(number, 62**4)
        high, low = divmod(four, 62**2)
        pairs += (_PAIRS[low], _PAIRS[high])
    return b"".join(reversed(pairs))[-width:]


class _Fold(NamedTuple):
    """One step of `base62_number`: neighbouring lanes of `bits` become one of twice the bits."""

    bits: int
    lows: int
    weight: int


def _folds(digits: int) -> tuple[_Fold, ...]:
    steps = []
    for step in range((digits - 1).bit_length()):
        bits = 8 << step
        lanes = range(0, 8 << (digits - 1).bit_length(), 2 * bits)
        steps.append(_Fold(bits, sum(((1 << bits) - 1) << lane for lane in lanes), 62 ** (1 << step)))
    return tuple(steps)


_FOLDS = _folds(_BODY_DIGITS)


def base62_number(digits: bytes) -> int:
    """Read up to 256 digits of base 62; the caller has checked that they are such.

    The digits' values stand side by side in one large integer, a byte each. Each step joins all neighbours at
    once, (high, low) becoming high * weight + low in a lane twice as wide, until one lane is left.
    """
    number = int.from_bytes(digits.translate(_VALUES), "big")
    for bits, lows, weight in _FOLDS:
        number = (number & lows) + ((number >> bits) & lows) * weight
    return number
