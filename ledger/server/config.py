"""What an operator tells the ledger: a JSON file, checked before anything is opened."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ledger.errors import FormatError

__all__ = ["Config", "load_config"]


class Config(BaseModel):
    """Where things lie. Paths are relative to the file that names them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field(description="host:port; port 0 takes a free one, and the ready line says which")
    data: Path = Field(description="folder of the store")
    trust: Path = Field(description="trust document")
    trust_domain: str = Field(description="as in spiffe://<trust domain>/<name>")
    note_keys: tuple[Path, ...] = Field(min_length=1, description="the ledger's private note keys")
    certificate: Path
    private_key: Path
    client_ca: Path = Field(description="who signs client certificates")
    genesis: Path | None = Field(default=None, description="placed if the log is empty")
    queue_requests: int = Field(default=1024, ge=1)
    queue_bytes: int = Field(default=64 * 2**20, ge=2**22)


def load_config(path: Path) -> Config:
    """Raises FormatError(BAD_CONFIG)."""
    try:
        config = Config.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise FormatError("BAD_CONFIG", f"expected a configuration in {path}, got {error}") from error
    folder = path.parent
    return config.model_copy(
        update={name: folder / value for name, value in config if isinstance(value, Path)}
        | {"note_keys": tuple(folder / key for key in config.note_keys)}
    )
