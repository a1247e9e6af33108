"""Verifies an evidence bundle offline: a folder, a public key, and, where you kept one, a head. Imports none of ours.

    python verify.py BUNDLE --public-key FILE [--head FILE]

Needs Python 3.11 and `cryptography`. Where it ends with 0, it has proved: every row in the bundle is, bit for bit, what
stood in the ledger when the head was signed; the rows of a stream in `facts.jsonl`, where every row of a pause has to
stand, follow each other with none left out between; and, with `--head`, the bundle's log begins with the log of the
head you kept; and every text in `contents` is what was written. It does not prove that no row is left out at the
beginning or the end of a stream, nor any `sentence`, nor that what was written was true.
Formats: docs/evidence.md and docs/facts.md of pauseledger; RFC 9162, section 2.1; C2SP signed-note, tlog-checkpoint,
tlog-proof. It shares no line with what made the bundle.
"""

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Row = dict[str, Any]
#: Whole streams, each row followed by the next; and single rows of other streams, each proved by itself.
CHAINED, BESIDE = "facts.jsonl", "beside.jsonl"
Tree = tuple[int, bytes]


class Wrong(Exception):
    """Something does not hold."""


def sha(*parts: bytes) -> bytes:
    """Hash parts, one behind the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def b64(text: str) -> bytes:
    """Decode base64 that is exactly the text of some bytes."""
    raw = base64.b64decode(text, validate=True)
    if base64.b64encode(raw).decode() != text:
        raise Wrong("base64 that is not written as it should be")
    return raw


# Heads: a text of origin, size and root; an empty line; signatures, each `— name base64(key id, signature)`.


def read_key(line: str) -> tuple[str, bytes, bytes]:
    """Read `name+id+key`: the name, the key's id, the Ed25519 key."""
    name, _, rest = line.strip().partition("+")
    told, _, key = rest.partition("+")
    raw = b64(key)
    if len(raw) != 33 or raw[0] != 1 or sha(name.encode(), b"\n", raw)[:4].hex() != told:  # noqa: PLR2004 - kind, key
        raise Wrong("the public key is none, or a character of it was changed")
    return name, bytes.fromhex(told), raw[1:]


def read_head(note: str, key: tuple[str, bytes, bytes]) -> Tree:
    """Verify a signed head, and give its size and root."""
    name, key_id, public = key
    text, _, signatures = note.rpartition("\n\n")
    for line in signatures.splitlines():
        dash, signer, told = line.split(" ")
        if dash == "\N{EM DASH}" and signer == name and b64(told)[:4] == key_id:
            try:
                Ed25519PublicKey.from_public_bytes(public).verify(b64(told)[4:], f"{text}\n".encode())
            except InvalidSignature:
                raise Wrong("a head's signature is not of its text") from None
            origin, size, root = text.split("\n")[:3]
            if origin != name or not size.isdecimal() or len(b64(root)) != 32:  # noqa: PLR2004 - SHA-256
                raise Wrong("a head is not this log's")
            return int(size), b64(root)
    raise Wrong("a head is not signed with the public key given")


# The tree, RFC 9162, sections 2.1.3.2 and 2.1.4.2.


def root_of(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """Follow an inclusion proof to the root it leads to."""
    here, last, found = index, size - 1, leaf
    for beside in path:
        if here & 1 or here == last:
            found = sha(b"\1", beside, found)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            found = sha(b"\1", found, beside)
        here, last = here >> 1, last >> 1
    return found if last == 0 and 0 <= index < size else b""


def must_begin_with(old: Tree, new: Tree, path: list[bytes]) -> None:
    """Follow a consistency proof from an older head to a newer one."""
    if not old[0]:
        raise Wrong("you kept a head of no leaves: every log begins with that one; keep a later one")
    if old[0] > new[0]:
        raise Wrong(f"you kept a head of {old[0]} leaves, the bundle's is of {new[0]}: ask for one under a newer head")
    if old[0] == new[0]:
        if old[1] != new[1]:
            raise Wrong("the bundle's head is not the one you kept: two logs of one name and size")
        return
    here, last = old[0] - 1, new[0] - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    path = [old[1], *path] if old[0] & (old[0] - 1) == 0 else path
    before = after = path[0] if path else b""
    for beside in path[1:]:
        if here & 1 or here == last:
            before, after = sha(b"\1", beside, before), sha(b"\1", beside, after)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            after = sha(b"\1", after, beside)
        here, last = here >> 1, last >> 1
    if last or (before, after) != (old[1], new[1]):
        raise Wrong("the bundle's log does not begin with the log of the head you kept: it was forked, or altered")


# Rows: "PLF1", digest, header's length, header (JSON), segments; docs/facts.md.


def contents(value: object) -> list[Row]:
    """Find every content that a header names; they are its segments."""
    if isinstance(value, dict):
        if {"segment", "stored", "digest", "comp"} <= value.keys() and isinstance(value["segment"], int):
            return [value]
        return [one for part in value.values() for one in contents(part)]
    return [one for part in value for one in contents(part)] if isinstance(value, list) else []


def header_of(state: bytes) -> tuple[Row, int]:
    """Read a row's header, and where its segments begin."""
    start = 40 + int.from_bytes(state[36:40], "big")
    return json.loads(state[40:start]), start


def digest_of(row: Row, ledger: UUID) -> bytes:
    """Digest a row anew, out of its bytes, its place, and its predecessor's digest."""
    state = b64(row["state"])
    header, start = header_of(state)
    if state[:4] != b"PLF1" or header["ledger"] != str(ledger):
        raise Wrong("it is no row of this ledger")
    if row.get("fact", header) != header:
        raise Wrong("what is told as its fact is not what its bytes say")
    stream, version = UUID(row["stream"]), row["version"].to_bytes(8, "big")
    if row["stream"] != str(stream):
        raise Wrong("its stream is not spelt as an id is, and would pass for another one")
    parts = [b"plf/1", ledger.bytes, stream.bytes, version, row["topic"].encode(), bytes.fromhex(row["before"])]
    parts.append(state[40:start])
    for one in sorted(contents(header), key=lambda one: one["segment"]):
        parts.append(state[start : start + one["stored"]])
        start += one["stored"]
    found = sha(*(len(part).to_bytes(4, "big") + part for part in parts))
    for told in row.get("contents") or ():
        must_be_of(told, contents(header))
    if start != len(state) or found != state[4:36] or (row["version"] == 1 and any(bytes.fromhex(row["before"]))):
        raise Wrong("it is not what was written, or not at its place")
    return found


def must_be_of(told: Row, named: list[Row]) -> None:
    """Hold a text that is told in clear against its digest, which the header names; an erased one is not told."""
    if told["digest"] not in [one["digest"] for one in named]:
        raise Wrong("a text is told that it does not name")
    if told["text"] is not None and sha(bytes.fromhex(told["salt"]), told["text"].encode()).hex() != told["digest"]:
        raise Wrong("a text that is told is not what was written")


def by_proof(text: str, index: int, digest: bytes, under: tuple[str, Tree]) -> None:
    """Hold a row's digest against the head, by its proof."""
    front, _, checkpoint = text.partition("\n\n")
    lines = front.split("\n")
    lines = [lines[0], *(lines[2:] if lines[1].startswith("extra ") else lines[1:])]
    if lines[:2] != ["c2sp.org/tlog-proof@v1", f"index {index}"] or checkpoint != under[0]:
        raise Wrong("its proof is not of this leaf, or not under the bundle's head")
    if root_of(sha(b"\0", digest), index, under[1][0], [b64(line) for line in lines[2:]]) != under[1][1]:
        raise Wrong("it does not stand in the tree of the head")


def prove_row(row: Row, ledger: UUID, bundle: Path, under: tuple[str, Tree], follower: tuple[int, str] | None) -> bool:
    """Prove a row by its own proof, or by the row that follows it; tell whether it has its own."""
    digest, proof = digest_of(row, ledger), bundle / "proofs" / f"{row['leaf_index']}.tlog-proof"
    if proof.exists():
        by_proof(proof.read_text("utf-8"), row["leaf_index"], digest, under)
    elif follower is None:
        raise Wrong("nothing proves it: it has no proof, and no row behind it in its stream is proved")
    if follower is not None and follower != (row["version"] + 1, digest.hex()):
        raise Wrong("the row behind it in its stream does not follow it")
    return proof.exists()


def may_stand_beside(row: Row, chained: set[str]) -> None:
    """Turn down a row where rows may be left out, that is of a stream in which none may be."""
    pause = header_of(b64(row["state"]))[0]["pause"]
    if row["topic"].startswith("pause.") or pause != row["stream"] or row["stream"] in chained:
        raise Wrong(f"rows of a pause, and of a stream that is told in {CHAINED}, stand in that file alone")


def verify(bundle: Path, public_key: str, kept: str | None = None) -> tuple[list[str], str]:
    """Verify a bundle; give what is wrong, each with its place, and what was verified."""
    # Whoever read a pipe would wait for good.
    if odd := [path for path in sorted(bundle.rglob("*")) if not path.is_file() and not path.is_dir()]:
        return [f"{path.relative_to(bundle)}: neither a file nor a folder" for path in odd], "nothing"
    try:
        key = read_key(public_key)
        head = (bundle / "head.txt").read_text("utf-8")
        tree, ledger = read_head(head, key), UUID(key[0].rpartition("/")[2])
        if kept is not None:
            older = read_head(kept, key)
            told = bundle / "consistency" / f"{older[0]}.txt"
            must_begin_with(older, tree, [b64(line) for line in told.read_text().split()] if told.exists() else [])
    except (Wrong, OSError, ValueError) as wrong:
        return [f"head: {wrong}"], "nothing"
    faults: list[str] = []
    followers: dict[str, tuple[int, str]] = {}
    chained: set[str] = set()
    rows = alone = 0
    # From the newest row of each stream back, so that the row that follows is known.
    for file, _, number, line in in_order(bundle):
        row: Row = {}
        try:
            row = json.loads(line())
            follower = followers.get(row["stream"]) if file == CHAINED else None
            alone += prove_row(row, ledger, bundle, (head, tree), follower)
            if file == BESIDE:
                may_stand_beside(row, chained)
            else:
                chained.add(row["stream"])
            followers[row["stream"]] = (row["version"], row["before"])
            rows += 1
        except (Wrong, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as wrong:
            where = ", ".join(f"{name} {row.get(name)}" for name in ("leaf_index", "position", "stream", "version"))
            faults.append(f"{file} line {number}, {where}: {wrong or type(wrong).__name__}")
    whole = f"{rows} rows of {len(followers)} streams, {alone} by a proof each, under a head of {tree[0]} leaves"
    if cut := sum(followers[stream][0] > 1 for stream in chained):
        whole += f"; streams not told from their beginning: {cut}"
    return [*faults, *damaged(bundle)], whole


def damaged(bundle: Path) -> list[str]:
    """Hold every file against SHA256SUMS. Whoever makes a bundle writes that too: it finds damage, and no forger."""
    sums = bundle / "SHA256SUMS"
    if not sums.exists():
        return []
    found = {""}
    for path in bundle.rglob("*"):
        if path.is_file() and path != sums:
            with path.open("rb") as file:
                found.add(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(bundle).as_posix()}")
    told = sums.read_bytes().decode("utf-8", "replace").split("\n")
    wrong = sorted(line[66:] for line in set(told) ^ found)
    return [f"SHA256SUMS: {name} is not as it was, not there, or not of the bundle" for name in dict.fromkeys(wrong)]


def in_order(bundle: Path) -> Iterator[tuple[str, str, int, Callable[[], bytes]]]:
    """Go through both files, each by stream, newest version first, with no line held."""
    for name in (CHAINED, BESIDE) if (bundle / BESIDE).exists() else (CHAINED,):
        for stream, _, number, line in lines_of(bundle / name):
            yield name, stream, number, line


def lines_of(path: Path) -> Iterator[tuple[str, int, int, Callable[[], bytes]]]:
    """Go through the lines of a file; what cannot be read comes first."""
    with path.open("rb") as file:
        found, at = [], 0
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                found.append((str(row["stream"]), -int(row["version"]), number, at))
            except (ValueError, LookupError, TypeError):
                found.append(("", 0, number, at))
            at += len(line)
        for stream, version, number, start in sorted(found):
            file.seek(start)
            yield stream, version, number, file.readline


def main() -> int:
    """Verify what the command line names."""
    parser = argparse.ArgumentParser(description="Verify an evidence bundle of pauseledger, offline.")
    text = argparse.FileType(encoding="utf-8", errors="replace")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--public-key", type=text, required=True, help="from elsewhere than the bundle")
    parser.add_argument("--head", type=text, help="a head that you kept")
    given = parser.parse_args()
    if not given.bundle.is_dir():
        parser.error(f"{given.bundle} is no folder; unpack an archive first, and name the folder that makes: evidence")
    faults, says = verify(given.bundle, given.public_key.read(), given.head.read() if given.head else None)
    print("\n".join([*(f"WRONG  {one}" for one in faults), f"{'WRONG' if faults else 'ok'}  verified {says}"]))  # noqa: T201 - its output
    return 5 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
