"""A witness as a real HTTP server (C2SP tlog-witness): it keeps state, checks consistency, cosigns; or lies.

It answers as the specification says. `lie` makes it misbehave: what a ledger and an auditor must bear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from ledger.checkpoint import Checkpoint, cosign, parse_checkpoint_text
from ledger.errors import AssayError
from ledger.merkle import verify_consistency
from ledger.note import Note, SigningKey, VerifierKey, decode_base64, decode_decimal, parse_note
from tests.forge import START, witness_key

__all__ = ["Witness"]

#: (status, content type, body)
Answer = tuple[int, str, bytes]


class Witness:
    """One witness, on a port of its own until `close`. A context manager."""

    def __init__(self, name: str, log: VerifierKey, *, port: int = 0) -> None:
        """`log`: whose checkpoints it cosigns."""
        self.key: SigningKey = witness_key(name)
        self.now = START // 1_000_000
        self.logs = {log.name: [log]}
        self.latest: dict[str, Checkpoint] = {}
        #: What it was asked, as (old size, checkpoint size).
        self.asked: list[tuple[int, int]] = []
        self.lie: Callable[[bytes], Answer] | None = None
        #: While it is clear, nobody gets an answer.
        self.answers = threading.Event()
        self.answers.set()
        self._turn = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """Its submission prefix."""
        return f"http://127.0.0.1:{self.port}/prefix"

    def line(self, name: str) -> str:
        """Its line of a trust document's policy."""
        return f"witness {name} {self.key.verifier_key}\n"

    def size(self) -> int:
        """The largest size it cosigned."""
        return max((checkpoint.size for checkpoint in self.latest.values()), default=0)

    def close(self) -> None:
        """Nobody listens any more."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Witness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the protocol ---------------------------------------------------------------------------------------

    def answer(self, body: bytes) -> Answer:
        """What the specification says to a request."""
        head, _, data = body.partition(b"\n\n")
        try:
            first, *proof = head.decode("ascii").split("\n")
            old = decode_decimal(first.removeprefix("old "))
            hashes = [decode_base64(line) for line in proof]
            note = parse_note(data)
            checkpoint = parse_checkpoint_text(note.text)
        except (AssayError, ValueError):
            return 400, "text/plain", b"malformed\n"
        if checkpoint.origin not in self.logs:
            return 404, "text/plain", b"unknown log\n"
        try:
            note.verify(self.logs[checkpoint.origin])
        except AssayError:
            return 403, "text/plain", b"no signature of the log\n"
        if old > checkpoint.size or len(hashes) > 63:
            return 400, "text/plain", b"old size\n"
        with self._turn:
            self.asked.append((old, checkpoint.size))
            return self._judge(old, hashes, note, checkpoint)

    def _judge(self, old: int, hashes: list[bytes], note: Note, checkpoint: Checkpoint) -> Answer:
        known = self.latest.get(checkpoint.origin)
        size = 0 if known is None else known.size
        if old != size:
            return 409, "text/x.tlog.size", f"{size}\n".encode()
        if known is None:
            holds = not hashes
        elif size == checkpoint.size:
            holds = known.root == checkpoint.root and not hashes
        else:
            holds = verify_consistency(size, checkpoint.size, known.root, checkpoint.root, hashes)
        if not holds:
            return 422, "text/plain", b"inconsistent\n"
        self.latest[checkpoint.origin] = checkpoint
        return 200, "text/plain", cosign(note.text, self.key, self.now)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        witness = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                witness.answers.wait()
                if self.path != "/prefix/add-checkpoint":
                    answer: Answer = (404, "text/plain", b"no such call\n")
                else:
                    answer = (witness.lie or witness.answer)(body)
                status, kind, data = answer
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
                """Says nothing."""

        return Handler
