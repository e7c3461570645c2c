"""Base of the pydantic models of artifacts and recipes."""

import os.path
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def expand_home(path: Path | str) -> Path:
    """Replace an initial `~`, which neither YAML nor every shell does after an equals sign."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's own raises for the name of an unknown user)


LocalPath = Annotated[Path, AfterValidator(expand_home)]


class StrictModel(BaseModel):
    """Immutable model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
