"""API keys with names, from the settings and from a file that is reread when it changes.

The file is TOML, with one table per name:

    [web]
    sha256 = ["9b7f..."]          # of each key; two during a rotation
"""

import hashlib
import hmac
import logging
import time
import tomllib
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mien.app.errors import SettingsError
from mien.app.settings import ApiKeyHash, Settings

_REREAD_S: Final = 1.0
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_log = logging.getLogger(__name__)


class _Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[tuple[ApiKeyHash, ...], Field(min_length=1)]


_FILE: Final = TypeAdapter(dict[_Name, _Entry])


def key_hash(key: str) -> str:
    """SHA-256 of an API key, 64 hexadecimal digits, for `MIEN_API_KEY_SHA256` and the file of keys."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """All keys of a service; a key of the settings is named after its hash."""

    def __init__(self, settings: Settings) -> None:
        """Read the file. Raises: SettingsError."""
        self._path = settings.api_keys_file
        self._from_settings = {digest: f"key:{digest[:12]}" for digest in settings.api_key_sha256}
        self._names, self._version, self._checked_s = self._from_settings, "", 0.0
        if self._path is not None:
            self._reread(self._path)

    def find(self, key: str) -> str | None:
        """The name of a key, if it is accepted."""
        if self._path is not None and time.monotonic() - self._checked_s > _REREAD_S:
            try:
                self._reread(self._path)
            except SettingsError as error:
                _log.error("%s. The earlier keys stay valid", error)  # without the traceback
        digest = key_hash(key)
        # Compare with every hash, so that the time does not reveal a match.
        matches = [name for known, name in self._names.items() if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None

    def _reread(self, path: Path) -> None:
        self._checked_s = time.monotonic()
        try:
            status = path.stat()
            version = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
            if version == self._version:
                return
            self._version = version
            entries = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            what = error.errors()[0] if isinstance(error, ValidationError) else None
            reason = f"{'.'.join(map(str, what['loc']))}: {what['msg']}" if what else error
            raise SettingsError(f"keys in {path}: {reason}") from error
        self._names = self._from_settings | {digest: name for name, entry in entries.items() for digest in entry.sha256}
