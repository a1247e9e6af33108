"""A TCP proxy before PostgreSQL that cuts or stalls a connection at a chosen moment of an append."""

import socket
import struct
import threading
from contextlib import suppress

#: Cut before the append reaches the server; in its midst; as soon as all of it was sent; in the midst of the answer; or
#: once the server has committed, its answer swallowed.
BEFORE, MIDST, SENT, ANSWER, AFTER = "before", "midst", "sent", "answer", "after"


_READY = b"Z\0\0\0\x05I"


class Proxy:
    """Listens on a port of this machine, and passes everything on to the server's Unix socket; a context manager.

    It reads the client's messages (https://www.postgresql.org/docs/current/protocol-message-formats.html): an append
    is the `Bind` of a statement that was parsed as an INSERT into `stored_events`.
    """

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cuts = []
        self._refusing = self._stalling = self._silent = False
        self._links = []
        self._open = []
        self.cut = 0

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        self._cut_all()

    @property
    def port(self):
        return self._listener.getsockname()[1]

    def arm(self, *moments, then_unreachable=False, stall=False):
        """Cut the next appends at these moments; afterwards, where asked, let nobody in until `heal`.

        A stalled connection stays open, and takes whatever is sent; nothing comes out of it any more.
        """
        self._cuts, self._then_unreachable, self._stalling = list(moments), then_unreachable, stall

    def stall_all(self):
        """Pass nothing on, of the connections there are and of those to come, until `heal`."""
        self._silent = True
        for link in self._links:
            link.stalled = True

    def heal(self):
        """Let everybody in again."""
        self._refusing = self._silent = False

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusing:
                    _reset(client)
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._open += [client, server]
                link = _Link(self, client, server)
                link.stalled = self._silent
                self._links.append(link)
                for side in (link.from_client, link.from_server):
                    threading.Thread(target=side, daemon=True).start()

    def moment(self):
        """Tell when the append now passing is cut; None where it is let through."""
        return self._cuts.pop(0) if self._cuts else None

    def cut_now(self, link):
        self.cut += 1
        if self._then_unreachable and not self._cuts:
            self._refusing = True
            self._cut_all()
        if self._stalling:
            link.stalled = True
            return
        _reset(link.client)
        _reset(link.server)

    def _cut_all(self):
        for one in self._open:
            _reset(one)


class _Link:
    """One client's connection."""

    def __init__(self, proxy, client, server):
        self.proxy, self.client, self.server = proxy, client, server
        self._inserts = set()
        self._moment = None
        self.stalled = False

    def from_client(self):
        with suppress(OSError, EOFError):
            self._pass(_exactly(self.client, struct.unpack("!I", head := _exactly(self.client, 4))[0] - 4), head)
            while True:
                head = _exactly(self.client, 5)
                self._judge(head, _exactly(self.client, struct.unpack("!I", head[1:])[0] - 4))
        _reset(self.server)

    def _judge(self, head, body):
        kind = head[:1]
        if kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            self._inserts.discard(name)
            if b"INSERT INTO" in query and b"stored_events" in query:
                self._inserts.add(name)
        moment = self.proxy.moment() if kind == b"B" and body.split(b"\0", 2)[1] in self._inserts else None
        if moment == BEFORE:
            self.proxy.cut_now(self)
        elif moment == MIDST:
            whole = head + body
            self.server.sendall(whole[: len(whole) // 2])
            self.proxy.cut_now(self)
        else:
            self._moment = moment or self._moment
            self._pass(body, head)
            if kind == b"S" and self._moment == SENT:
                # A Sync is the last of what is sent.
                self.proxy.cut_now(self)

    def _pass(self, body, head):
        if not self.stalled:
            self.server.sendall(head + body)

    def from_server(self):
        with suppress(OSError):
            while said := self.server.recv(1 << 16):
                if self.stalled or self._moment == SENT:
                    continue
                if self._moment in (ANSWER, AFTER):
                    # ReadyForQuery ends what the server says of a statement: by then it has committed.
                    if said.endswith(_READY):
                        self.client.sendall(said[: -len(_READY)] if self._moment == ANSWER else b"")
                        self.proxy.cut_now(self)
                else:
                    self.client.sendall(said)
        _reset(self.client)


def _exactly(connection, count):
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _reset(connection):
    """Break a connection off as a network does: without a goodbye."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()
