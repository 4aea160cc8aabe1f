"""Reflection: what the servers tell about their own schema, and to whom."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # type: ignore[import-untyped]  # ships no types
    ProtoReflectionDescriptorDatabase,
)

from ledger.v1 import ledger_pb2
from tests.lab import Lab


def _described(lab: Lab) -> tuple[set[str], bytes]:
    with grpc.secure_channel(lab.address, lab.identity("auditor-1").channel_credentials()) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        file = database.FindFileContainingSymbol("ledger.v1.LedgerService")
        return set(database.get_services()), file.SerializeToString()


async def test_the_ledger_describes_its_services() -> None:
    """A tool without the .proto files finds every service, and the file that is served."""
    async with Lab() as lab:
        services, file = await asyncio.to_thread(_described, lab)
        assert {
            "ledger.v1.LedgerService",
            "ledger.v1.ReceiptService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        } <= services
        assert ledger_pb2.DESCRIPTOR.serialized_pb == file


def _stranger(lab: Lab) -> None:
    authority = grpc.ssl_channel_credentials((lab.path / "ca.crt").read_bytes())
    with grpc.secure_channel(lab.address, authority) as channel:
        ProtoReflectionDescriptorDatabase(channel).get_services()


async def test_who_has_no_certificate_learns_nothing() -> None:
    """Reflection stands behind the same door as everything else."""
    async with Lab() as lab:
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(_stranger, lab)
        assert grpc.StatusCode.UNAVAILABLE == caught.value.code()  # type: ignore[attr-defined]  # a Call too
