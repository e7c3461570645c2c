"""API keys with names and quotas, from the settings and from a file that is reread when it changes.

The file is TOML, with one table per name:

    [web]
    sha256 = ["9b7f..."]          # of each key; two during a rotation
    requests_per_minute = 600     # without a quota, only the limits of the service apply
    megapixels_per_minute = 3000
"""

import hashlib
import hmac
import logging
import math
import time
import tomllib
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mien.app.errors import QuotaExceeded, SettingsError
from mien.app.settings import ApiKeyHash, Settings

_REREAD_S: Final = 1.0
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_log = logging.getLogger(__name__)


class _Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[tuple[ApiKeyHash, ...], Field(min_length=1)]
    requests_per_minute: Annotated[float, Field(gt=0)] = math.inf
    megapixels_per_minute: Annotated[float, Field(gt=0)] = math.inf


_FILE: Final = TypeAdapter(dict[_Name, _Entry])


def key_hash(key: str) -> str:
    """SHA-256 of an API key, 64 hexadecimal digits, for `MIEN_API_KEY_SHA256` and the file of keys."""
    return hashlib.sha256(key.encode()).hexdigest()


class _Quota:
    """An amount per minute that refills steadily; at most a minute's worth is saved up."""

    def __init__(self, per_minute: float) -> None:
        self._left, self._at_s = per_minute, time.monotonic()
        self.per_minute = per_minute

    def wait_s(self, needed: float) -> float:
        """Seconds until this amount is left."""
        now_s = time.monotonic()
        self._left = min(self.per_minute, self._left + (now_s - self._at_s) * self.per_minute / 60)
        self._at_s = now_s
        return 0.0 if math.isinf(self.per_minute) else max(0.0, (needed - self._left) * 60 / self.per_minute)

    def use(self, amount: float) -> None:
        """Use an amount; the rest may become negative."""
        if not math.isinf(self.per_minute):
            self._left -= amount


class ApiKey:
    """The keys of one name, and its quotas."""

    def __init__(self, name: str, entry: _Entry) -> None:
        self.name, self.entry = name, entry
        self._requests, self._megapixels = _Quota(entry.requests_per_minute), _Quota(entry.megapixels_per_minute)

    def use_request(self) -> None:
        """Use one request; the megapixels of earlier ones must not exceed the quota. Raises: QuotaExceeded."""
        quotas = (
            (self._requests, min(1.0, self._requests.per_minute), "requests"),
            (self._megapixels, 0, "megapixels"),
        )
        for quota, needed, unit in quotas:
            if wait_s := quota.wait_s(needed):
                detail = f"{self.name} has used its {quota.per_minute:g} {unit} per minute: wait {math.ceil(wait_s)} s"
                raise QuotaExceeded(detail, retry_after_s=math.ceil(wait_s))
        self._requests.use(1)

    def use_pixels(self, pixels: int) -> None:
        """Use the pixels of one image, before it is decoded."""
        self._megapixels.use(pixels / 1e6)


class Keys:
    """All keys of a service; a key of the settings is named after its hash."""

    def __init__(self, settings: Settings) -> None:
        """Read the file. Raises: SettingsError."""
        self._path = settings.api_keys_file
        self._own = {
            f"key:{known[:12]}": ApiKey(f"key:{known[:12]}", _Entry(sha256=(known,)))
            for known in settings.api_key_sha256
        }
        self._keys, self._version, self._checked_s = self._own, "", 0.0
        if self._path is not None:
            self._reread(self._path)

    def find(self, key: str) -> ApiKey | None:
        """The entry of a key, if it is accepted."""
        if self._path is not None and time.monotonic() - self._checked_s > _REREAD_S:
            try:
                self._reread(self._path)
            except SettingsError as error:
                _log.error("%s. The earlier keys stay valid", error)  # without the traceback
        digest = key_hash(key)
        # Compare with every hash, so that the time does not reveal a match.
        matches = [
            entry for entry in self._keys.values() for known in entry.entry.sha256 if hmac.compare_digest(digest, known)
        ]
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
        kept = {name: key for name, key in self._keys.items() if entries.get(name) == key.entry}
        self._keys = self._own | {name: kept.get(name) or ApiKey(name, entry) for name, entry in entries.items()}
