"""What who may put content tries to find out of content that is not his, and does not."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO

import grpc
import pytest

from clients.blobs import BlobsClient
from clients.home import DEVELOPMENT_PRINCIPALS, Principal
from ledger.errors import InputError
from ledger.server.blob_service import BlobLimits
from ledger.v1 import blob_pb2, blob_pb2_grpc, options_pb2
from ledger.wire import error_of
from tests.lab import Lab
from tests.server.people import body, enqueued

PEOPLE = (*DEVELOPMENT_PRINCIPALS, Principal("runner-2", options_pb2.ROLE_RUNNER, "person-2"))


async def _probe(lab: Lab, digest: bytes, announced: int, salted: bool, sent: bytes) -> tuple[str, str]:
    """What runner-2, who does not have the content, is told of its digest."""
    client = lab.client("runner-2")
    blob = options_pb2.Blob(digest=digest, size=announced, salted=salted)
    header = blob_pb2.BlobHeader(blob=blob, salt=bytes(32) if salted else None)

    def messages() -> Iterator[blob_pb2.PutRequest]:
        yield blob_pb2.PutRequest(header=header)
        yield blob_pb2.PutRequest(chunk=sent)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await blob_pb2_grpc.BlobServiceStub(client.channel).Put(messages())
    error = error_of(caught.value)
    assert isinstance(error, InputError)
    return error.reason, error.message.replace(digest.hex(), "DIGEST")


@pytest.mark.parametrize("full", [False, True], ids=["room", "no-room"])
async def test_law_07_nobody_learns_of_content_by_putting_its_digest(full: bool) -> None:
    """Of stored, erased and absent content the same is said, whatever size is announced: before possession
    is proven there is no answer that depends on what the ledger has."""
    limits = BlobLimits(orphans=1)
    async with Lab(principals=PEOPLE, settings={"blob_limits": limits}) as lab:
        runner, owner = lab.client("runner-1"), BlobsClient(lab.client("runner-1"))
        holdout = [
            await _named(lab, owner, f"ro-{place}", text) for place, text in enumerate((b"aaaa", b"bbbb"))
        ]
        erased = body(lab, "blob_erased", digest=holdout[1])
        await lab.of_role("operator").append([erased])
        await runner.append([enqueued(lab, "mine", mode=1, update="up-2")])
        if full:
            await BlobsClient(lab.client("runner-2")).put(BytesIO(b"mine"))
        digests = {"stored": holdout[0], "erased": holdout[1], "absent": sha256(b"cccc").digest()}
        for announced, salted, sent in ((3, False, b"xxx"), (4, False, b"xxxx"), (4, True, b"xxxx")):
            said = {of: await _probe(lab, digest, announced, salted, sent) for of, digest in digests.items()}
            assert 1 == len({(r, m if r != "BLOB_DIGEST" else "") for r, m in said.values()}), said
            assert ("ORPHANS_FULL" if full else "BLOB_DIGEST") == said["absent"][0]


async def _named(lab: Lab, owner: BlobsClient, rollout: str, content: bytes) -> bytes:
    blob = await owner.put(BytesIO(content))
    named = enqueued(lab, rollout, mode=3, update="up-1", input_blob=blob)
    await lab.client("runner-1").append([named])
    return blob.digest
