"""V4: the key is known and in force, entry 0 opens the log, the role may write the type, the key rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.errors import CannotTellError
from ledger.note import KEY_TYPE_COSIGNATURE, SigningKey, VerifierKey, encode_base64
from ledger.trust import WRITER
from ledger.v1 import event_pb2, options_pb2, root_pb2
from tests.events import BODIES, minimal_event
from tests.forge import (
    LEDGER,
    ORIGIN,
    ROLES,
    ROOT,
    Forge,
    event_id,
    granted,
    make_key,
    numbered,
    opened,
    refused,
    revoked,
    rotated,
    verify,
    witness_key,
)

RUNNER = ROLES["runner"]
WITNESS = witness_key("witness-1")
WITNESSED = f"witness w1 {WITNESS.verifier_key}\nquorum none\n"


# --- the key is known and in force -------------------------------------------------------------------------


def test_v4_a_key_that_was_never_granted() -> None:
    """A perfect signature by a stranger is refused at the batch's first index."""
    forge = Forge.opened("runner")
    forge.add("stranger", numbered(0), numbered(1))
    refused(forge, "V4", "KEY_UNKNOWN", 2)


def test_v4_another_key_under_a_granted_name() -> None:
    """A name alone gives no authority: the key id counts too."""
    forge = Forge.opened("runner")
    forge.add(make_key("runner", "another"), numbered(0))
    refused(forge, "V4", "KEY_UNKNOWN", 2)


def test_v4_a_grant_acts_after_its_batch_only() -> None:
    """A key that is used before it is granted is refused, though the grant follows."""
    forge = Forge.opened()
    forge.add("runner", numbered(0))
    forge.add(ROOT, granted(make_key("runner"), RUNNER))
    refused(forge, "V4", "KEY_UNKNOWN", 1)


def test_v4_a_revoked_key() -> None:
    """From its revocation on nothing by a key is accepted; what it wrote before stands."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0))
    forge.add(ROOT, revoked(make_key("runner")))
    assert 4 == forge.verify().size
    forge.add("runner", numbered(1))
    refused(forge, "V4", "KEY_REVOKED", 4)


@pytest.mark.parametrize("suspect_from", [0, 2, 3])
def test_v4_suspect_from_keeps_the_entries(suspect_from: int) -> None:
    """Entries that stop counting stay in the log: it verifies. The index may be the revocation's own."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0))
    forge.add(ROOT, revoked(make_key("runner"), suspect_from))
    assert {"root": 3, "runner": 1} == forge.verify().authors


def test_v4_suspect_from_after_the_revocation() -> None:
    """Nobody is suspected from a later index on."""
    forge = Forge.opened("runner")
    forge.add(ROOT, revoked(make_key("runner"), 3))
    refused(forge, "V4", "BAD_SUSPECT_FROM", 2)


def test_v4_a_revoked_key_leaves_the_name_usable() -> None:
    """A principal goes on with a new key of the same role."""
    second = make_key("runner", "second")
    forge = Forge.opened("runner")
    forge.add(ROOT, revoked(make_key("runner")), granted(second, RUNNER))
    forge.add(second, numbered(0))
    assert {"root": 4, "runner": 1} == forge.verify().authors


# --- entry 0 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["key_granted", "workflow_declared", "rollout_enqueued", "verdict_issued"])
def test_v4_entry_0_is_ledger_opened(body: str) -> None:
    """A log begins with LedgerOpened and nothing else."""
    forge = Forge()
    forge.add(ROOT, minimal_event(body))
    refused(forge, "V4", "NOT_OPENED", 0)


def test_v4_entry_0_of_a_type_unknown_here() -> None:
    """No newer release opens a log in another way: a log that begins with an unknown type is refused."""
    forge = Forge()
    forge.add(ROOT, _newer())
    refused(forge, "V4", "NOT_OPENED", 0)


def test_v4_entry_0_is_alone_in_its_batch() -> None:
    """LedgerOpened shares its batch with nothing."""
    forge = Forge()
    forge.add(ROOT, opened(), granted(make_key("runner"), RUNNER))
    refused(forge, "V4", "NOT_OPENED", 0)


def test_v4_entry_0_is_by_root() -> None:
    """Nobody but root of the trust document opens a log."""
    forge = Forge()
    forge.add("operator", opened())
    refused(forge, "V4", "KEY_UNKNOWN", 0)


def test_v4_entry_0_names_the_trusted_origin() -> None:
    """A log opened under another origin is another log."""
    forge = Forge()
    forge.add(ROOT, opened("ledger.test/assay-fedcba9876543210"))
    refused(forge, "V4", "OTHER_ORIGIN", 0)


def test_v4_entry_0_names_a_ledger_key_of_the_origin() -> None:
    """The ledger's key has the origin as its name."""
    forge = Forge()
    forge.add(ROOT, opened(ORIGIN, make_key("someone")))
    refused(forge, "V4", "BAD_LEDGER_KEY", 0)


def test_v4_a_log_opens_once() -> None:
    """LedgerOpened stands at index 0 only."""
    forge = Forge.opened()
    forge.add(ROOT, opened())
    refused(forge, "V4", "ALREADY_OPENED", 1)


# --- the role may write the type ---------------------------------------------------------------------------

_MISFITS = [
    (role, body) for role, number in {"root": 1, **ROLES}.items() for body in BODIES if WRITER[body] != number
]


@pytest.mark.parametrize(("role", "body"), _MISFITS)
def test_law_07_v4_no_role_writes_what_is_another_s(role: str, body: str) -> None:
    """A bribed ledger may place it under a perfect signature: the log is refused at that very index."""
    forge = Forge.opened("runner", *([] if role in ("root", "runner") else [role]))
    if role == "root":
        forge.add(ROOT, rotated(make_key(ORIGIN, "2")), minimal_event(body))
        refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 3, export=forge.export())
        return
    first = forge.add(role, minimal_event(body))
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", first)


@pytest.mark.parametrize("body", [body for body in BODIES if WRITER[body] != options_pb2.ROLE_ROOT])
def test_v4_every_role_writes_what_is_its_own(body: str) -> None:
    """Each type of event is accepted from the role whose file defines it."""
    role = next(name for name, number in ROLES.items() if number == WRITER[body])
    forge = Forge.opened(role)
    forge.add(role, minimal_event(body))
    assert {"root": 2, role: 1} == forge.verify().authors


def test_v4_the_misplaced_event_is_named_within_its_batch() -> None:
    """Among events that a role may write the one that it may not is named by its own index."""
    forge = Forge.opened("trainer")
    own = minimal_event("training_progressed")
    forge.add("trainer", own, own, minimal_event("reward_recorded"), own)
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 4)


def test_v4_two_bodies_in_one_event_are_the_last() -> None:
    """Of two bodies in the bytes the parse keeps one: that one is judged, as it is the one folded."""
    both = (
        minimal_event("training_progressed").SerializeToString()
        + event_pb2.Event(verdict_issued=minimal_event("verdict_issued").verdict_issued).SerializeToString()
    )
    forge = Forge.opened("trainer")
    forge.add("trainer", both)
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 2)


def test_v4_a_role_of_a_newer_release_writes_nothing_known() -> None:
    """A role number that this release does not know is no writer of any type that it knows."""
    forge = Forge.opened()
    forge.add(ROOT, granted(make_key("future"), 77))
    forge.add("future", numbered(0))
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 2)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x10short", b"\x0a"])
def test_v4_bytes_that_are_no_event(data: bytes) -> None:
    """Bytes that do not parse have no type that any role could write."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), data)
    refused(forge, "V4", "MALFORMED_EVENT", 3)


def test_v4_an_event_without_a_body() -> None:
    """An event with no body and no unknown field has no type in any release."""
    forge = Forge.opened("runner")
    forge.add("runner", event_pb2.Event(event_id=event_id(1)))
    refused(forge, "V4", "MALFORMED_EVENT", 2)


# --- types of a newer release ------------------------------------------------------------------------------


def _newer() -> bytes:
    # Field 300, length-delimited, empty: a body that this release does not know.
    return event_pb2.Event(event_id=event_id(1)).SerializeToString() + b"\xe2\x12\x00"


def test_v4_a_newer_type_cannot_be_told() -> None:
    """The log is neither verified nor refuted; the first index and the number of such entries are said."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), _newer(), _newer())
    forge.add("runner", numbered(1))
    with pytest.raises(CannotTellError) as caught:
        verify(forge.export(), forge.trust)
    assert "NEWER_EVENT_TYPE" == caught.value.reason
    assert "got 2 entries of others, the first at index 3;" in caught.value.message


def test_v4_a_fault_beats_a_newer_type() -> None:
    """What is wrong after a newer type is found, and said instead."""
    forge = Forge.opened("runner")
    forge.add("runner", _newer())
    forge.add("runner", minimal_event("verdict_issued"))
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 3)
    refused(forge, "V5", "BAD_SIZE", None, export=forge.export(forge.checkpoint(), 3))


# --- key rules ---------------------------------------------------------------------------------------------


def _mixed_vkey(name: str, public_key: bytes) -> event_pb2.Event:
    """KeyGranted with any 32 bytes as public key, its key id computed as for a good one."""
    good = make_key(name)
    text = f"{name}+{good.verifier_key.key_id.hex()}+{encode_base64(bytes([1]) + public_key)}"
    event = granted(good, RUNNER)
    event.key_granted.vkey = text
    return event


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(granted(make_key("runner"), RUNNER), "KEY_TAKEN", id="the same grant again"),
        pytest.param(granted(make_key("judge"), ROLES["judge"]), "", id="a free key passes"),
        pytest.param(granted(make_key("runner", "2"), ROLES["trainer"]), "NAME_KEEPS_ROLE", id="two roles"),
        pytest.param(granted(make_key(ORIGIN, "3"), RUNNER), "NAME_KEEPS_ROLE", id="the ledger's name"),
        pytest.param(granted(make_key("root", "2"), RUNNER), "NAME_KEEPS_ROLE", id="root's name"),
        pytest.param(granted(make_key("root-2"), 1), "ROOT_NOT_GRANTABLE", id="root"),
        pytest.param(granted(make_key("nobody"), 0), "ROOT_NOT_GRANTABLE", id="no role"),
        pytest.param(granted(witness_key("nobody"), RUNNER), "BAD_KEY_TYPE", id="a witness's kind of key"),
        pytest.param(_mixed_vkey("small", bytes(32)), "BAD_PUBLIC_KEY", id="order 4"),
        pytest.param(_mixed_vkey("small", b"\x01" + bytes(31)), "BAD_PUBLIC_KEY", id="order 1"),
        pytest.param(_mixed_vkey("small", b"\xff" * 32), "BAD_PUBLIC_KEY", id="y not below p"),
        pytest.param(_mixed_vkey("small", b"\x02" + bytes(31)), "BAD_KEY_ID", id="another key's id"),
        pytest.param(revoked(make_key("stranger")), "KEY_UNKNOWN", id="revoking a stranger"),
        pytest.param(revoked(ROOT), "NOT_REVOCABLE", id="revoking root"),
        pytest.param(rotated(make_key("someone")), "BAD_LEDGER_KEY", id="a ledger key of another name"),
        pytest.param(rotated(LEDGER), "KEY_TAKEN", id="rotating to the key in force"),
    ],
)
def test_v4_key_rules(event: event_pb2.Event, reason: str) -> None:
    """Each rule of key events, broken once, is refused at the event's own index within its batch."""
    forge = Forge.opened("runner")
    forge.add(ROOT, granted(make_key("auditor"), ROLES["auditor"]), event)
    if reason:
        refused(forge, "V4", reason, 3)
    else:
        assert 4 == forge.verify().size


def _under_name(key: SigningKey, name: str) -> SigningKey:
    """The same key pair under another name."""
    twin = SigningKey(name, bytes(32))
    twin._private = key._private
    twin.verifier_key = VerifierKey(name, 1, key.verifier_key.public_key)
    return twin


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(make_key("runner"), id="another principal's"),
        pytest.param(ROOT, id="root's"),
        pytest.param(LEDGER, id="the ledger's"),
        pytest.param(WITNESS, id="a witness's"),
    ],
)
def test_law_08_v4_one_public_key_has_one_name_and_one_role(taken: SigningKey) -> None:
    """A public key that has a place in the log gets no second one under another name."""
    forge = Forge.opened("runner", policy=WITNESSED)
    forge.add(ROOT, granted(_under_name(taken, "twin"), ROLES["judge"]))
    refused(forge, "V4", "KEY_TAKEN", 2)


def test_v4_a_revoked_public_key_is_never_granted_again() -> None:
    """A key's place is for the log's life: revoked, it comes back under no name."""
    for again in (make_key("runner"), _under_name(make_key("runner"), "twin")):
        forge = Forge.opened("runner")
        forge.add(ROOT, revoked(make_key("runner")))
        forge.add(ROOT, granted(again, RUNNER))
        refused(forge, "V4", "KEY_TAKEN", 3)


@pytest.mark.parametrize("principal", ["runner", "root"])
def test_v4_a_ledger_key_is_no_principal_s(principal: str) -> None:
    """The ledger does not go on with a key that is a principal's or root's."""
    forge = Forge.opened("runner")
    forge.add(ROOT, rotated(_under_name(make_key(principal), ORIGIN)))
    refused(forge, "V4", "KEY_TAKEN", 2)


def test_v4_a_former_ledger_key_is_taken() -> None:
    """A ledger key that was in force is neither taken up again nor granted."""
    second = make_key(ORIGIN, "2")
    for event in (rotated(LEDGER), granted(_under_name(LEDGER, "twin"), RUNNER)):
        forge = Forge.opened()
        forge.add(ROOT, rotated(second))
        forge.add(ROOT, event)
        refused(forge, "V4", "KEY_TAKEN", 2)


def test_v4_key_rules_are_judged_as_if_the_earlier_events_of_the_batch_had_acted() -> None:
    """Grant, revoke and revoke again in one batch: the second revocation finds the key revoked."""
    key = make_key("runner")
    forge = Forge.opened()
    forge.add(ROOT, granted(key, RUNNER), revoked(key))
    assert 3 == forge.verify().size
    forge = Forge.opened()
    forge.add(ROOT, granted(key, RUNNER), revoked(key), revoked(key))
    refused(forge, "V4", "KEY_REVOKED", 3)
    forge = Forge.opened()
    forge.add(ROOT, granted(key, RUNNER), granted(key, RUNNER))
    refused(forge, "V4", "KEY_TAKEN", 2)


def _approver(change: Callable[[root_pb2.KeyGranted], object], role: str = "approver") -> event_pb2.Event:
    event = granted(make_key(role), ROLES[role])
    change(event.key_granted)
    return event


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(_approver(lambda body: body.ClearField("approver_kind")), id="an approver of no kind"),
        pytest.param(
            _approver(lambda body: setattr(body, "approver_kind", root_pb2.APPROVER_KIND_HUMAN), "judge"),
            id="a judge with a kind",
        ),
        pytest.param(
            _approver(lambda body: setattr(body, "approver_kind", root_pb2.APPROVER_KIND_RELEASE_ACTOR)),
            id="a release actor without a policy",
        ),
        pytest.param(
            _approver(lambda body: setattr(body, "policy_digest", bytes(32))), id="a human with a policy"
        ),
    ],
)
def test_v4_an_approver_is_human_or_bound_to_a_policy(event: event_pb2.Event) -> None:
    """A grant for approver says HUMAN, or RELEASE_ACTOR and its policy's digest; no other grant does."""
    forge = Forge.opened()
    forge.add(ROOT, event)
    refused(forge, "V4", "BAD_APPROVER", 1)


def test_v4_a_witness_s_kind_of_key_signs_no_batch() -> None:
    """A cosignature key's id is not that of an Ed25519 key of the same name and bytes."""
    forge = Forge.opened("runner")
    forge.add(SigningKey("runner", bytes(32), KEY_TYPE_COSIGNATURE), numbered(0))
    refused(forge, "V4", "KEY_UNKNOWN", 2)


def test_v4_one_authority_judges_a_whole_batch() -> None:
    """Root grants and, in the same batch, what is granted cannot act yet: the batch stays root's."""
    forge = Forge.opened()
    forge.add(ROOT, granted(make_key("runner"), RUNNER), numbered(0))
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 2)
