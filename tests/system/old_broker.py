"""A server that says it is a broker of Kafka 2.4, as far as a client asks before it is refused."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["old_broker"]

# What Kafka 2.4 tells of itself (api key: newest version), of the requests that matter here.
_VERSIONS = {0: 8, 1: 11, 2: 5, 3: 4, 8: 8, 9: 6, 10: 2, 18: 3, 19: 5, 22: 1, 24: 1, 25: 1, 26: 1, 28: 2, 32: 2}
_UNSUPPORTED = 35
_METADATA, _API_VERSIONS = 3, 18


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _versions(version: int) -> bytes:
    if version > 0:  # the client asks again with version 0, which every broker knows
        return struct.pack(">hihhh", _UNSUPPORTED, 1, _API_VERSIONS, 0, 0)
    listed = b"".join(struct.pack(">hhh", key, 0, newest) for key, newest in _VERSIONS.items())
    return struct.pack(">hi", 0, len(_VERSIONS)) + listed


def _metadata(port: int, topics: list[str]) -> bytes:
    """Version 4: topics without ids, as all before version 10."""
    broker = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">ih", port, -1)
    partition = struct.pack(">hii", 0, 0, 1) + struct.pack(">ii", 1, 1) * 2
    listed = b"".join(struct.pack(">h", 0) + _text(name) + struct.pack(">?i", False, 1) + partition for name in topics)
    head = struct.pack(">ii", 0, 1) + broker + _text("old") + struct.pack(">i", 1)
    return head + struct.pack(">i", len(topics)) + listed


class _Client(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while len(size := self.rfile.read(4)) == 4:
            request = self.rfile.read(struct.unpack(">i", size)[0])
            key, version, correlation, client = struct.unpack(">hhih", request[:10])
            body = request[10 + max(client, 0) :]
            if key == _API_VERSIONS:
                answer = _versions(version)
            elif key == _METADATA:
                answer = _metadata(self.server.server_address[1], _asked(body))
            else:
                return
            answer = struct.pack(">i", correlation) + answer
            self.wfile.write(struct.pack(">i", len(answer)) + answer)


def _asked(body: bytes) -> list[str]:
    count, names, at = struct.unpack(">i", body[:4])[0], [], 4
    for _ in range(max(count, 0)):
        size = struct.unpack(">h", body[at : at + 2])[0]
        names.append(body[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return names


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def old_broker() -> Iterator[int]:
    """Its port."""
    with _Server(("127.0.0.1", 0), _Client) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
