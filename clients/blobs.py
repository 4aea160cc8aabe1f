"""The client of BlobService: content by digest, compared with the digest here.

Rules:
1. What was fetched counts once all of it was compared: until `fetch` returns, nothing that it wrote does.
2. A salt is chosen here, at random, and travels with the content: without it nobody can guess what an erased
   blob held.
3. Content follows once the ledger took its header: what is refused for its size, its sender or want of room
   is not sent in vain.
4. Sending again is safe: the same content is the same blob. A content file is read again for each attempt.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import IO, Final

import grpc.aio

from clients.ledger import LedgerClient
from ledger.errors import VerificationError
from ledger.v1 import blob_pb2, blob_pb2_grpc, options_pb2
from ledger.wire import GO_ON

__all__ = ["SALT_BYTES", "BlobsClient", "blob_of", "new_salt"]

SALT_BYTES: Final = 32
_CHUNK: Final = 2**18  # bytes of a message
_SLOWEST: Final = 2**17  # bytes a second


def new_salt() -> bytes:
    """A salt that was never used."""
    return secrets.token_bytes(SALT_BYTES)


def blob_of(content: IO[bytes], salt: bytes | None = None) -> options_pb2.Blob:
    """The blob of a file's content, as an event names it. Reads the file from its beginning to its end."""
    covered, size = sha256(salt or b""), 0
    content.seek(0)
    while chunk := content.read(_CHUNK):
        covered.update(chunk)
        size += len(chunk)
    return options_pb2.Blob(digest=covered.digest(), size=size, salted=salt is not None)


class BlobsClient:
    """Puts and gets over the connection of a LedgerClient."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._stub = blob_pb2_grpc.BlobServiceStub(client.channel)

    async def put(self, content: IO[bytes], salt: bytes | None = None) -> options_pb2.Blob:
        """Keeps a file's content and returns once it is durable. Raises AssayError.

        `salt`: 32 bytes that were never used (`new_salt`), the same ones to send the same blob again.
        """
        blob = await asyncio.to_thread(blob_of, content, salt)
        header = blob_pb2.BlobHeader(blob=blob, salt=salt)
        return await self._client.retry(lambda: self._put(header, content))

    async def _put(self, header: blob_pb2.BlobHeader, content: IO[bytes]) -> options_pb2.Blob:
        async def messages() -> AsyncIterator[blob_pb2.PutRequest]:
            yield blob_pb2.PutRequest(header=header)
            if GO_ON not in tuple(await call.initial_metadata()):
                await call.code()  # refused: a message that is under way then would cost us the reason
                return
            content.seek(0)
            while chunk := await asyncio.to_thread(content.read, _CHUNK):
                yield blob_pb2.PutRequest(chunk=chunk)

        # As long as the content takes at a modest pace, beside what any call may take.
        deadline = self._client.deadline + header.blob.size / _SLOWEST
        call = self._stub.Put(messages(), timeout=deadline)
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            raise self._client.judged(error) from error
        blob: options_pb2.Blob = response.blob
        return blob

    async def fetch(self, digest: bytes, to: IO[bytes]) -> options_pb2.Blob:
        """Writes the content of a digest, without its salt, to a file; the blob that it is.

        Raises NotFoundError NO_SUCH_BLOB, RefusedError ERASED or MAY_NOT_READ, VerificationError BLOB_DIGEST
        or BLOB_SIZE: what was written is not the content.
        """
        call = self._stub.Get(blob_pb2.GetRequest(digest=digest))
        blob, covered, size = options_pb2.Blob(), sha256(), 0
        try:
            async for message in self._client.messages(call):
                if message.WhichOneof("part") == "header":
                    blob, covered = message.header.blob, sha256(message.header.salt)
                    continue
                covered.update(message.chunk)
                size += len(message.chunk)
                await asyncio.to_thread(to.write, message.chunk)
        finally:
            call.cancel()
        if covered.digest() != digest:
            raise VerificationError(
                "BLOB", "BLOB_DIGEST", f"expected content of digest {digest.hex()}, got {covered.hexdigest()}"
            )
        if size != blob.size or blob.digest != digest:
            raise VerificationError(
                "BLOB", "BLOB_SIZE", f"expected {size} bytes of {digest.hex()}, got a header of {blob.size}"
            )
        return blob

    async def stat(self, digest: bytes) -> blob_pb2.StatResponse:
        """Where content stands, by the server's word. Raises NotFoundError NO_SUCH_BLOB."""
        response: blob_pb2.StatResponse = await self._client.call(
            self._stub.Stat, blob_pb2.StatRequest(digest=digest)
        )
        return response
