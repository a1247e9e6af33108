"""Signed notes, tree heads and proofs as text: C2SP signed-note, tlog-checkpoint and tlog-proof, with Ed25519.

https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint, https://c2sp.org/tlog-proof. A verifier's key is one
line, `name+id+key`: the key's name, its id in hex, and base64 of its kind and its bytes.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .merkle import HASH_BYTES, Unproved, verify_inclusion

#: A note has at most so many signatures, and so many bytes.
SIGNATURES = 64
NOTE_BYTES = 1 << 20
#: No proof of a tree whose size fits 63 bits is longer.
LONGEST = 63

_ED25519 = b"\x01"
_KEY_ID = 4
_DASH = "\N{EM DASH} "
_PROOF = "c2sp.org/tlog-proof@v1"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_NAME = re.compile(r"[^\s+\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class Verifier:
    """A public key by its name; `str()` is the one line that is handed to auditors."""

    name: str
    key: bytes

    @classmethod
    def parse(cls, line: str) -> "Verifier":
        """Read `name+id+key`.

        Raises:
            Unproved: it is none, or its id is not that of its key.
        """
        name, _, rest = line.strip().partition("+")
        told, _, key = rest.partition("+")
        raw = _bytes(key)
        if not _NAME.fullmatch(name) or raw[:1] != _ED25519 or len(raw) != 1 + HASH_BYTES:
            raise Unproved("the public key is no Ed25519 key as `name+id+key`; take the line that `keys log` prints")
        found = cls(name, raw[1:])
        if told != found.id.hex():
            raise Unproved("the public key's id is not that of its key; a character was changed")
        return found

    @property
    def id(self) -> bytes:
        """The first 4 bytes of the hash of name, kind and key."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.key).digest()[:_KEY_ID]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{_text(_ED25519 + self.key)}"

    def verify(self, text: bytes, signature: bytes) -> bool:
        """Tell whether this key signed a text."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key (32 bytes) under a name."""

    name: str
    seed: bytes = field(repr=False)

    @property
    def verifier(self) -> Verifier:
        """The public key."""
        return Verifier(self.name, self._key().public_key().public_bytes_raw())

    def sign(self, text: str) -> str:
        """Sign a text that ends with a newline, and give the note.

        Raises:
            ValueError: the text cannot stand in a note.
        """
        if not text.endswith("\n") or not _printable(text):
            raise ValueError("a note's text ends with a newline, and has no other control character")
        signature = self._key().sign(text.encode())
        return f"{text}\n{_DASH}{self.name} {_text(self.verifier.id + signature)}\n"

    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


def open_note(note: str, keys: Iterable[Verifier]) -> str:
    """Give a note's text, once a key that is trusted has signed it; signatures of others are passed over.

    Raises:
        Unproved: no key signed it, one that is trusted did not sign this text, or it is no note.
    """
    text, lines = _parts(note)
    trusted = {(key.name, key.id): key for key in keys}
    signed = False
    for name, told in lines:
        key = trusted.get((name, told[:_KEY_ID]))
        if key is not None:
            if not key.verify(text.encode(), told[_KEY_ID:]):
                raise Unproved(f"the signature by {name} is not of this text")
            signed = True
    if not signed:
        raise Unproved("no trusted key has signed it; check that the public key is this ledger's")
    return text


def _parts(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    text, found, signatures = note.rpartition("\n\n")
    lines = signatures.split("\n")
    if not found or lines.pop() or not 1 <= len(lines) <= SIGNATURES or len(note) > NOTE_BYTES or not _printable(note):
        raise Unproved("it is no signed note: a text, an empty line, and signatures, each on a line of its own")
    return text + "\n", [_signature(line) for line in lines]


def _signature(line: str) -> tuple[str, bytes]:
    name, _, told = line.removeprefix(_DASH).partition(" ")
    raw = _bytes(told)
    if not line.startswith(_DASH) or not _NAME.fullmatch(name) or len(raw) <= _KEY_ID:
        raise Unproved("it is no signed note: a signature's line is a dash, a name and base64")
    return name, raw


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree head: whose tree, how many leaves, which root."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """Write it as the text of a note."""
        return f"{self.origin}\n{self.size}\n{_text(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """Read the text of a note; what others put behind the three lines is passed over.

        Raises:
            Unproved: it is no checkpoint.
        """
        origin, *lines = text.removesuffix("\n").split("\n")
        if len(lines) < 2 or "" in (origin, *lines) or not _NUMBER.fullmatch(lines[0]):  # noqa: PLR2004 - size and root
            raise Unproved("it is no checkpoint: the first three lines are an origin, a size and a root")
        found = cls(origin, int(lines[0]), _bytes(lines[1]))
        if len(found.root) != HASH_BYTES:
            raise Unproved("it is no checkpoint: the root is not 32 bytes as base64")
        return found

    @classmethod
    def of(cls, note: str) -> "Checkpoint":
        """Read a note's checkpoint, whoever signed it, if anybody did.

        Raises:
            Unproved: it is no note, or no checkpoint.
        """
        return cls.parse(_parts(note)[0])

    @classmethod
    def open(cls, note: str, keys: Iterable[Verifier]) -> "Checkpoint":
        """Read a signed head.

        Raises:
            Unproved: no trusted key signed it, it is of another origin than the key's name, or no checkpoint.
        """
        trusted = list(keys)
        found = cls.parse(open_note(note, trusted))
        if found.origin not in {key.name for key in trusted}:
            raise Unproved(f"the head is of {found.origin}, and no key given is of that name")
        return found


@dataclass(frozen=True, slots=True)
class Proof:
    """That a leaf stands in the tree of a signed head; offline, in one file."""

    index: int
    path: Sequence[bytes]
    checkpoint: str

    def text(self) -> str:
        """Write it as a file's content, as UTF-8; such files end in `.tlog-proof`."""
        return "\n".join([_PROOF, f"index {self.index}", *map(_text, self.path), "", self.checkpoint])

    @classmethod
    def parse(cls, text: str) -> "Proof":
        """Read a proof; extra data in it are passed over.

        Raises:
            Unproved: it is none.
        """
        front, _, checkpoint = text.partition("\n\n")
        first, *lines = front.split("\n")
        if lines and lines[0].startswith("extra "):
            del lines[0]
        told = lines[0].removeprefix("index ") if lines and lines[0].startswith("index ") else ""
        path = [_bytes(line) for line in lines[1:]]
        if first != _PROOF or not _NUMBER.fullmatch(told) or len(path) > LONGEST:
            raise Unproved(f"it is no proof: it begins with {_PROOF}, `index` and a number")
        if any(len(one) != HASH_BYTES for one in path):
            raise Unproved("it is no proof: each line between index and head is 32 bytes as base64")
        return cls(int(told), path, checkpoint)

    def verify(self, leaf: bytes, keys: Iterable[Verifier]) -> Checkpoint:
        """Hold a leaf's hash against the head within.

        Raises:
            Unproved: the head is not signed, or the leaf does not stand in its tree.
        """
        head = Checkpoint.open(self.checkpoint, keys)
        verify_inclusion(leaf, self.index, head.size, self.path, head.root)
        return head


def hashes_as_text(path: Sequence[bytes]) -> str:
    """Write a consistency proof: one hash a line."""
    return "".join(f"{_text(one)}\n" for one in path)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    """Decode base64 that is exactly the text of some bytes; anything else gives none."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return raw if _text(raw) == text else b""


def _printable(text: str) -> bool:
    return all(character >= " " or character == "\n" for character in text)
