"""Base of the pydantic models of artifacts and recipes."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class StrictModel(BaseModel):
    """Immutable model that rejects unknown keys.

    `removed` has the keys of earlier releases with their default, so that runs and artifacts that recorded it load.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    removed: ClassVar[Mapping[str, object]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, values: Any) -> Any:
        if not cls.removed or not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in cls.removed or value != cls.removed[key]}
