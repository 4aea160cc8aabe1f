"""What an operator tells the ledger: a JSON file, checked before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ledger.errors import FormatError
from ledger.server.blob_service import BlobLimits

__all__ = ["Config", "load_config"]

_BLOBS: Final = BlobLimits()


class Config(BaseModel):
    """Where things lie. Paths are relative to the file that names them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field(description="host:port; port 0 takes a free one, and the ready line says which")
    data: Path = Field(description="folder of the store")
    store: str | None = Field(
        default=None, description="postgresql://… of the log's database; absent: SQLite in `data`"
    )
    trust: Path = Field(description="trust document")
    trust_domain: str = Field(description="as in spiffe://<trust domain>/<name>")
    note_keys: tuple[Path, ...] = Field(
        default=(), description="the ledger's private note keys, beside ASSAY_KEY_LEDGER of the environment"
    )
    certificate: Path
    private_key: Path
    client_ca: Path = Field(description="who signs client certificates")
    genesis: Path | None = Field(default=None, description="placed if the log is empty")
    metrics: str | None = Field(default=None, description="host:port for Prometheus over HTTP; absent: none")
    witnesses: dict[str, str] = Field(
        default={}, description="a witness's name in the trust document -> the URL it takes checkpoints under"
    )
    logs: Literal["text", "json"] = Field(default="text", description="how stderr reads")
    queue_requests: int = Field(default=1024, ge=1)
    queue_bytes: int = Field(default=64 * 2**20, ge=2**24)
    blobs: str | None = Field(
        default=None, description="where content is kept: s3://… or another fsspec URL; absent: in `data`"
    )
    blob_bytes: int = Field(default=_BLOBS.blob_bytes, ge=1, description="of one blob")
    blobs_bytes: int = Field(default=_BLOBS.total_bytes, ge=1, description="of all blobs")
    orphan_blobs: int = Field(
        default=_BLOBS.orphans, ge=1, description="that a principal may have put and no event names"
    )
    orphan_bytes: int = Field(default=_BLOBS.orphan_bytes, ge=1, description="of those")
    orphan_seconds: int = Field(
        default=_BLOBS.orphan_age // 1_000_000, ge=60, description="until one of those is removed"
    )

    @field_validator("witnesses")
    @classmethod
    def _over_http(cls, witnesses: dict[str, str]) -> dict[str, str]:
        for name, url in witnesses.items():
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
                raise ValueError(f"expected http(s)://host[:port][/path] for {name}, got another")
            if parts.username is not None or parts.password is not None:
                raise ValueError(f"expected a URL without user and password for {name}, got one")
        return witnesses

    @field_validator("blobs")
    @classmethod
    def _blobs_by_url(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if not parts.scheme:
                raise ValueError("expected a URL such as s3://bucket/folder or file:///folder, got no scheme")
            if parts.password is not None:
                raise ValueError("expected a URL without a password, got one: use the store's own settings")
        return url

    @field_validator("store")
    @classmethod
    def _database_without_password(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in {"postgresql", "postgres"}:
            raise ValueError("expected postgresql://…, got another scheme")
        if parts.password is not None or "password" in parse_qs(parts.query):
            raise ValueError(
                "expected a URL without a password, got one: name a file (?passfile=…) or set PGPASSWORD"
            )
        return url

    @property
    def blob_limits(self) -> BlobLimits:
        """How much content is kept."""
        age = self.orphan_seconds * 1_000_000
        return BlobLimits(self.blob_bytes, self.blobs_bytes, self.orphan_blobs, self.orphan_bytes, age)


def load_config(path: Path) -> Config:
    """Raises FormatError(BAD_CONFIG)."""
    try:
        config = Config.model_validate_json(path.read_bytes())
    except OSError as error:
        raise FormatError("BAD_CONFIG", f"expected a configuration in {path}, got {error}") from error
    except ValidationError as error:
        # Without the values: one of them may be a password.
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        )
        raise FormatError(
            "BAD_CONFIG", f"expected a configuration in {path}, got {'; '.join(faults)}"
        ) from None
    folder = path.parent
    return config.model_copy(
        update={name: folder / value for name, value in config if isinstance(value, Path)}
        | {"note_keys": tuple(folder / key for key in config.note_keys)}
    )
