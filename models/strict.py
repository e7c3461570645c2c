"""Base of the pydantic models of artifacts and recipes."""

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator


def expand_home(path: Path | str) -> Path:
    """Replace an initial `~`, which neither YAML nor every shell does after an equals sign."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's own raises for the name of an unknown user)


LocalPath = Annotated[Path, AfterValidator(expand_home)]


class StrictModel(BaseModel):
    """Immutable model that rejects unknown keys.

    `removed` has the keys of earlier releases with their default, so that runs and artifacts that recorded it load.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    removed: ClassVar[Mapping[str, object]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, values: Any) -> Any:
        if not cls.removed or not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in cls.removed or value != cls.removed[key]}
