"""What the ledger counts, and what of it another may learn."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from io import BytesIO

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clients.blobs import BlobsClient
from ledger.errors import FatalError, OverloadedError
from ledger.server.blob_service import BlobLimits
from ledger.server.metrics import Metrics
from ledger.server.store import Commit, Store
from ledger.v1 import ledger_pb2
from tests.lab import Lab
from tests.server.people import batch, body, enqueued, reason_of, until


def _text(lab: Lab) -> str:
    assert lab.host is not None
    assert lab.host.listener is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{lab.host.listener.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


async def _numbers(lab: Lab) -> dict[str, float]:
    """What a scrape gives: `name{label=value,…}` -> value."""
    text = await asyncio.to_thread(_text, lab)
    return dict(_samples(text))


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            yield sample.name + (f"{{{labels}}}" if labels else ""), sample.value


def _lab(**more: object) -> Lab:
    return Lab(settings={"metrics": "127.0.0.1:0"}, **more)  # type: ignore[arg-type]  # passed through


async def test_batches_are_counted_by_what_became_of_them() -> None:
    """Acknowledged, sent again, refused by its reason; entries and commits with them."""
    async with _lab() as lab:
        before = await _numbers(lab)
        client = lab.of_role("runner")
        signed = batch(lab.identity("runner-1"), [enqueued(lab)] * 5)
        await client.append_signed(signed)
        await client.append_signed(signed)
        assert "ROLE_MAY_NOT_WRITE" == await reason_of(client.append([body(lab, "approval_granted")]))
        after = await _numbers(lab)
        grown = {name: after[name] - before.get(name, 0) for name in after}
        assert [2, 1, 1, 1, 5] == [
            grown["assay_appends_total{outcome=acknowledged,reason=}"],
            grown["assay_resends_total"],
            grown["assay_appends_total{outcome=refused,reason=ROLE_MAY_NOT_WRITE}"],
            grown["assay_batches_total"],
            grown["assay_entries_total"],
        ]
        assert 1 == grown["assay_commit_seconds_count"] == grown["assay_commit_bytes_count"]
        assert sum(map(len, signed.events)) < grown["assay_commit_bytes_sum"]
        assert lab.host is not None
        assert lab.host.services.sequencer.size == after["assay_released_size"]


async def test_what_stands_is_read_when_somebody_asks() -> None:
    """The queue, the views' lag, open streams by RPC, the process."""
    async with _lab() as lab:
        numbers = await _numbers(lab)
        assert [0, 0] == [numbers["assay_queue_requests"], numbers["assay_queue_bytes"]]
        assert 0 == numbers["assay_streams_open{rpc=Follow}"]
        assert numbers["process_resident_memory_bytes"] > 0
        following = lab.of_role("auditor").stub.Follow(ledger_pb2.FollowRequest(start=0))
        await following.read()
        assert 1 == (await _numbers(lab))["assay_streams_open{rpc=Follow}"]
        following.cancel()
        host = lab.host
        assert host is not None
        await until(
            lambda: 0 == host.metrics.registry.get_sample_value("assay_streams_open", {"rpc": "Follow"})
        )


async def test_content_is_counted() -> None:
    """What is kept, named and erased, from the start and as it changes; what was refused, by its reason."""
    limits = BlobLimits(blob_bytes=100)
    async with Lab(settings={"metrics": "127.0.0.1:0", "blob_limits": limits}) as lab:
        client = BlobsClient(lab.of_role("runner"))
        made = [await client.put(BytesIO(bytes(size))) for size in (10, 20, 40)]
        assert "BLOB_TOO_LARGE" == await reason_of(client.put(BytesIO(bytes(101))))
        assert "MAY_NOT_READ" == await reason_of(BlobsClient(lab.of_role("trainer")).stat(made[0].digest))
        assert [3, 70, 3, 0] == await _kept(lab)
        await lab.of_role("runner").append([enqueued(lab, input_blob=made[0])])
        await lab.of_role("operator").append([body(lab, "blob_erased", digest=made[1].digest)] * 2)
        assert lab.host is not None
        await lab.host.services.blobs.collect()
        assert [2, 50, 1, 1] == await _kept(lab)
        numbers = await _numbers(lab)
        refused = {name: value for name, value in numbers.items() if name.startswith("assay_blob_refusals_t")}
        assert {
            "assay_blob_refusals_total{reason=BLOB_TOO_LARGE}": 1,
            "assay_blob_refusals_total{reason=MAY_NOT_READ}": 1,
        } == refused
        await lab.restart()
        assert [2, 50, 1, 1] == await _kept(lab)


async def _kept(lab: Lab) -> list[float]:
    numbers = await _numbers(lab)
    return [numbers[f"assay_blobs{name}"] for name in ("", "_bytes", "_orphans", "_erased")]


class _Full:
    """A real store that refuses the next commit."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.full = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def commit(self, commit: Commit) -> None:
        """As told."""
        if self.full:
            self.full = False
            raise OverloadedError("COMMIT_FAILED", "expected the commit to be stored, got a full disk", 0.0)
        self._inner.commit(commit)


async def test_a_commit_that_the_store_did_not_take_is_counted() -> None:
    """It is the ledger's trouble and the author's to send again: both are seen."""
    stores: list[_Full] = []

    def wrap(store: Store) -> Store:
        stores.append(_Full(store))
        return stores[-1]  # type: ignore[return-value]  # a Store by its methods

    async with _lab(wrap_store=wrap) as lab:
        assert "assay_store_errors_total{reason=COMMIT_FAILED}" not in await _numbers(lab)
        stores[-1].full = True
        await reason_of(lab.of_role("runner", attempts=1).append([enqueued(lab)]), OverloadedError)
        numbers = await _numbers(lab)
        assert 1 == numbers["assay_store_errors_total{reason=COMMIT_FAILED}"]
        assert 1 == numbers["assay_appends_total{outcome=overloaded,reason=COMMIT_FAILED}"]


async def test_numbers_name_nobody() -> None:
    """No principal, origin, key or id is a label, so labels do not grow with what clients do."""
    async with _lab() as lab:
        for rollout in ("secret-rollout-1", "secret-rollout-2"):
            await lab.of_role("runner").append([enqueued(lab, rollout)])
        text = await asyncio.to_thread(_text, lab)
        told = set(re.findall(r'="([^"]*)"', text))
        assert not [value for value in told if value in lab.home.principals or "secret" in value]
        assert lab.home.origin not in text


def test_law_09_what_nobody_measured_is_absent() -> None:
    """A reading of None shows nothing: a ledger without witnesses has no age of a cosignature, not 0."""
    metrics = Metrics()
    metrics.read("assay_seen", "Seen.", lambda: 3)
    metrics.read("assay_unseen", "Not seen.", lambda: None)
    get = metrics.registry.get_sample_value
    assert [3.0, None] == [get("assay_seen"), get("assay_unseen")]


async def test_without_the_setting_nobody_listens() -> None:
    """The listener asks for no certificate: it is there only where an operator said so."""
    async with Lab() as lab:
        assert lab.host is not None
        assert lab.host.listener is None


async def test_an_address_that_is_taken_or_none_stops_the_start() -> None:
    """Numbers that nobody can read are no silent default."""
    async with _lab() as lab:
        assert lab.host is not None
        assert lab.host.listener is not None
        for address in (f"127.0.0.1:{lab.host.listener.port}", "127.0.0.1", "127.0.0.1:99999"):
            with pytest.raises(FatalError) as caught:
                Metrics().listen(address)
            assert "NOT_LISTENING" == caught.value.reason
