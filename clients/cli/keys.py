"""`assay key`: who may sign what. Root's commands verify the whole log before they write, and after.

Rules:
1. A change is judged by the verifier's own rules before anything is made or sent.
2. A new key is encrypted if the one beside it is, under the same passphrase.
3. Whatever breaks off, the same command again goes on from there.
"""

from __future__ import annotations

import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.cli.app import READERS, JsonFlag, Session, group, session_of, wait_for
from clients.cli.keyfiles import NameArgument, new, passphrase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from clients.keys import KeyDesk, Known
    from ledger.note import VerifierKey
    from ledger.trust import Grant

__all__ = ["keys"]

keys = group("Keys and who holds them: list, grant, revoke, rotate (root); new, passphrase (anybody).")

ReasonOption = Annotated[
    str, typer.Option("--reason", help="Stands in the log for ever.", show_default=False)
]
VkeyOption = Annotated[
    str | None,
    typer.Option(
        "--vkey",
        metavar="VKEY",
        help="Public key of one that was made elsewhere (assay key new).",
        show_default="make one here",
    ),
]


class ApproverKind(StrEnum):
    """Who an approver is."""

    HUMAN = "human"
    RELEASE_ACTOR = "release-actor"


# --- reading ---------------------------------------------------------------------------------------------


@keys.command("list")
def list_keys(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List every key that the log ever gave a place, after verifying the whole log."""
    from clients.cli.show import emit, lines

    session = session_of(context)
    known = wait_for(_known(session, session.principal(*READERS, "root")))
    grants = sorted(known.authority.grants.values(), key=lambda grant: grant.granted_at)
    document = {
        "verified_size": known.verified.size,
        "ledger_key": str(known.authority.ledger_key),
        "keys": [_grant_document(grant) for grant in grants],
    }
    emit(document, as_json, lambda: lines(*map(_grant_line, grants), _verified_line(known)))


async def _known(session: Session, name: str) -> Known:
    from clients.identity import load_identity
    from clients.keys import verify_log
    from clients.ledger import LedgerClient

    async with LedgerClient(load_identity(session.home, name)) as client:
        return await verify_log(client)


def _grant_document(grant: Grant) -> dict[str, Any]:
    from ledger.trust import role_name

    revoked = grant.revocation
    return {
        "name": grant.name,
        "key_id": grant.key.key_id.hex(),
        "vkey": str(grant.key),
        "role": role_name(grant.role),
        "controller": grant.controller,
        "granted_at": None if grant.granted_at < 0 else grant.granted_at,
        "revoked_at": None if revoked is None else revoked.index,
        "suspect_from": None if revoked is None else revoked.suspect_from,
    }


def _grant_line(grant: Grant) -> str:
    said = _grant_document(grant)
    since = "by the trust document" if said["granted_at"] is None else f"granted at {said['granted_at']}"
    line = f"{said['name']}  {said['key_id']}  {said['role']}  of {said['controller']}, {since}"
    if said["revoked_at"] is None:
        return line
    suspect = "" if said["suspect_from"] is None else f", nothing counts from {said['suspect_from']} on"
    return f"{line}, REVOKED at {said['revoked_at']}{suspect}"


def _verified_line(known: Known) -> str:
    return f"the whole log was verified: {known.verified.size} entries"


# --- what root writes ------------------------------------------------------------------------------------


def _as_root(session: Session, work: Callable[[KeyDesk], Awaitable[dict[str, Any]]], as_json: bool) -> None:
    """Runs `work` as root, and says what it did."""
    from clients.cli.show import emit, pairs

    document = wait_for(_at_desk(session, work))
    emit(
        document, as_json, lambda: pairs((name.replace("_", " "), value) for name, value in document.items())
    )


async def _at_desk(session: Session, work: Callable[[KeyDesk], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    from clients.cli.desk import event
    from clients.identity import load_identity
    from clients.keys import KeyDesk
    from clients.ledger import LedgerClient

    identity = load_identity(session.home, session.principal("root"))
    async with LedgerClient(identity) as client:
        return await work(KeyDesk(client, event))


def _now() -> int:
    return time.time_ns() // 1000


@keys.command()
def grant(
    context: typer.Context,
    name: NameArgument,
    role: Annotated[str, typer.Option("--role", help="One of the roles below root.", show_default=False)],
    controller: Annotated[
        str,
        typer.Option("--controller", help="Person or service accountable for it.", show_default=False),
    ],
    approver_kind: Annotated[
        ApproverKind | None, typer.Option("--approver-kind", help="Approvers only.", show_default=False)
    ] = None,
    policy_digest: Annotated[
        str | None,
        typer.Option(
            "--policy-digest", metavar="DIGEST", help="Release actors: their one policy.", show_default=False
        ),
    ] = None,
    vkey: VkeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give a principal a key, and a certificate to connect with (root).

    Without --vkey the key is made in this home. With it the private key stays where it is; certificate and
    its key are put under issued/NAME, to be handed over.
    """
    session = session_of(context)
    body = _key_granted(role, controller, approver_kind, policy_digest)
    _as_root(session, lambda desk: _grant(session.home, desk, name, body, vkey), as_json)


def _key_granted(role: str, controller: str, kind: ApproverKind | None, digest: str | None) -> Any:
    from clients.cli.parse import parse_digest
    from ledger.trust import role_name
    from ledger.v1 import options_pb2, root_pb2

    roles = {
        role_name(number): number for number in options_pb2.Role.values() if number > options_pb2.ROLE_ROOT
    }
    if role not in roles:
        raise typer.BadParameter(f"--role: expected one of {', '.join(roles)}, got {role!r}")
    kinds = {
        ApproverKind.HUMAN: root_pb2.APPROVER_KIND_HUMAN,
        ApproverKind.RELEASE_ACTOR: root_pb2.APPROVER_KIND_RELEASE_ACTOR,
    }
    return root_pb2.KeyGranted(
        role=roles[role],
        controller=controller,
        approver_kind=None if kind is None else kinds[kind],
        policy_digest=None if digest is None else parse_digest(digest, "--policy-digest"),
    )


async def _grant(home: Path, desk: KeyDesk, name: str, body: Any, vkey: str | None) -> dict[str, Any]:
    from clients.certificates import check_holder
    from clients.home import add_principal
    from clients.keyfile import new_key, passphrase_like, read_key, write_key
    from clients.keys import grants_same
    from ledger.errors import RefusedError
    from ledger.trust import role_name

    check_holder(name)
    known = await desk.known()
    folder = home / ("principals" if vkey is None else "issued") / name
    file, data = folder / "note.key", None
    if vkey is not None:
        key = _named(vkey, name)
    elif file.exists():  # made by a grant that broke off
        key = read_key(file, name).verifier_key
    else:
        data, made = new_key(name)
        key = made.verifier_key
    body.vkey = str(key)
    held = known.authority.grants.get((name, key.key_id))
    if held is None:
        desk.check(known, body)
    elif held.revocation is not None or not grants_same(held, body):
        raise RefusedError(
            "KEY_TAKEN",
            f"expected a name without a key, or the same grant again, got {name}, granted at index "
            f"{held.granted_at} as {role_name(held.role)}: `assay key rotate` gives it a new key",
        )
    if not (folder / "client.crt").exists():
        _credential(home, folder, name)
    if data is not None:
        beside = _root_key(home, known)
        write_key(file, data, None if beside is None else passphrase_like(beside))
    index = None if held is None else held.granted_at
    if index is None:
        index, known = await desk.write(known, body)
    if vkey is None:
        add_principal(home, name, role_name(body.role))
    return {"granted": str(key), "index": index, "in": str(folder), "verified_size": known.verified.size}


def _named(vkey: str, name: str) -> VerifierKey:
    from ledger.errors import FormatError
    from ledger.note import VerifierKey

    key = VerifierKey.parse(vkey)
    if key.name != name:
        raise FormatError("BAD_NAME", f"--vkey: expected a key named {name}, got one named {key.name}")
    return key


def _root_key(home: Path, known: Known) -> Path | None:
    """The file of a root key that the home holds, by the trust document's order; None where it has none."""
    files = (home / "principals" / key.name / "note.key" for key in known.authority.trust.roots)
    return next((file for file in files if file.exists()), None)


def _credential(home: Path, folder: Path, name: str) -> None:
    from clients.home import issue_client
    from clients.keyfile import write_key

    credential = issue_client(home, name, random=secrets.token_bytes, now=_now())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_key(folder / "client.key", credential.key, None)
    (folder / "client.crt").write_bytes(credential.certificate)


@keys.command()
def revoke(
    context: typer.Context,
    name: NameArgument,
    reason: ReasonOption,
    key_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEYID]", help="8 hex digits, of several keys in force.", show_default="the only one"
        ),
    ] = None,
    suspect_from: Annotated[
        int | None,
        typer.Option(
            "--suspect-from",
            min=0,
            metavar="INDEX",
            help="Entries of the key from this index on stop counting.",
            show_default="all it wrote still counts",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """End a key (root). What it wrote stays in the log; say from where on it must not count."""
    _as_root(session_of(context), lambda desk: _revoke(desk, name, key_id, reason, suspect_from), as_json)


async def _revoke(
    desk: KeyDesk, name: str, key_id: str | None, reason: str, suspect_from: int | None
) -> dict[str, Any]:
    from clients.keys import grant_in_force
    from ledger.v1 import root_pb2

    known = await desk.known()
    held = grant_in_force(known.authority, name, key_id)
    body = root_pb2.KeyRevoked(vkey=str(held.key), reason=reason, suspect_from=suspect_from)
    index, known = await desk.write(known, body)
    return {
        "revoked": str(held.key),
        "index": index,
        "suspect_from": suspect_from,
        "verified_size": known.verified.size,
        "next": "assay status (defaults at risk), assay updates (verdicts that stand no more)",
    }


@keys.command()
def rotate(
    context: typer.Context,
    name: NameArgument,
    reason: ReasonOption = "rotated",
    as_json: JsonFlag = False,
) -> None:
    """Give a principal of this home a new key under its name, then revoke the old one (root).

    All that the old key wrote still counts. A process that runs under the old key must be started again.
    """
    session = session_of(context)
    _as_root(session, lambda desk: _rotate(session.home, desk, name, reason), as_json)


async def _rotate(home: Path, desk: KeyDesk, name: str, reason: str) -> dict[str, Any]:
    from clients.keyfile import new_key, passphrase_like, read_key, write_key
    from clients.keys import grant_in_force, rotation_of
    from ledger.errors import RefusedError
    from ledger.v1 import root_pb2

    folder = home / "principals" / name
    file = folder / "note.key"
    known = await desk.known()
    # Under the old key's id: a rotation that broke off is taken up, whatever of it is done.
    pending = next(iter(sorted(folder.glob("next-*.key"))), None)
    if pending is None:
        old = grant_in_force(known.authority, name, read_key(file, name).verifier_key.key_id.hex())
        pending = folder / f"next-{old.key.key_id.hex()}.key"
        data, made = new_key(name)
        desk.check(known, rotation_of(old, made.verifier_key))
        write_key(pending, data, passphrase_like(file))
    old = known.authority.grants[name, bytes.fromhex(pending.stem.removeprefix("next-"))]
    new = read_key(pending).verifier_key
    if (name, new.key_id) not in known.authority.grants:
        _, known = await desk.write(known, rotation_of(old, new))
    _replace(file, pending)
    if known.authority.grants[name, old.key.key_id].revocation is None:
        try:
            _, known = await desk.write(known, root_pb2.KeyRevoked(vkey=str(old.key), reason=reason))
        except RefusedError as error:
            if error.reason != "KEY_REVOKED":
                raise
            known = await desk.known()  # Root revoked it elsewhere a moment ago: the log must say so.
            if known.authority.grants[name, old.key.key_id].revocation is None:
                raise
    pending.unlink()
    return {"revoked": str(old.key), "granted": str(new), "verified_size": known.verified.size}


def _replace(file: Path, by: Path) -> None:
    """Puts a key's bytes, as they are, in the place of another's."""
    from clients.keyfile import read_key_text, write_key

    write_key(file, read_key_text(by), None)


@keys.command("rotate-ledger")
def rotate_ledger(
    context: typer.Context,
    reason: ReasonOption = "rotated",
    vkey: VkeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give the ledger itself a new key (root). Run it, start the ledger again, run it once more.

    First the key is made, or named with --vkey; the ledger must be started again, so that it holds both. Then
    root says so in the log, and the new key signs. Clients learn it from the log, and the old file may go.
    """
    session = session_of(context)
    _as_root(session, lambda desk: _rotate_ledger(session.home, desk, reason, vkey), as_json)


async def _rotate_ledger(home: Path, desk: KeyDesk, reason: str, vkey: str | None) -> dict[str, Any]:
    from clients.keyfile import new_key, passphrase_like, read_key, write_key
    from ledger.errors import NotFoundError, RefusedError
    from ledger.v1 import root_pb2

    known = await desk.known()
    origin, folder = known.authority.trust.origin, home / "ledger"
    files = {read_key(file).verifier_key: file for file in sorted(folder.glob("note*.key"))}
    fresh = [key for key in files if key not in known.authority.ledger_keys]
    if vkey is not None:
        new = _named(vkey, origin)
    elif fresh:
        new = fresh[0]
    else:
        held = files.get(known.authority.ledger_key)
        if held is None:
            raise NotFoundError(
                "KEY_ABSENT",
                f"expected the ledger's key in {folder}, got none: make the new one where that one is kept "
                "(assay key new), and name it with --vkey",
            )
        data, made = new_key(origin)
        new = made.verifier_key
        desk.check(known, root_pb2.LedgerKeyRotated(ledger_vkey=str(new), reason=reason))
        file = folder / f"note-{new.key_id.hex()}.key"
        write_key(file, data, passphrase_like(held))
        return {
            "made": str(file),
            "next": "start the ledger again, so that it holds both keys, then run this command once more",
        }
    try:
        index, known = await desk.write(known, root_pb2.LedgerKeyRotated(ledger_vkey=str(new), reason=reason))
    except RefusedError as error:
        if error.reason != "LEDGER_KEY_NOT_HELD":
            raise
        raise RefusedError(
            error.reason, f"{error.message}: start the ledger again, then run this command once more"
        ) from error
    old = [str(file) for key, file in files.items() if key != new]
    return {
        "ledger_key": str(new),
        "index": index,
        "may_go": ", ".join(old) or None,
        "verified_size": known.verified.size,
    }


for _command in (new, passphrase):
    keys.command()(_command)
