"""Settings from the environment: strict parsing, and unchanged settings in worker processes."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mien.app.errors import SettingsError
from mien.app.service import server
from mien.app.settings import Settings, environment, load_settings
from tests.support import ROOT, environment_of

KEY = "ab" * 32
PLACES = ("MODEL", "JOBS_DIR", "MODELS_DIR", "API_KEYS_FILE", "HOST")


@pytest.fixture(autouse=True)
def only_these_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", environment_of())


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({"MIEN_API_KEYS_SHA256": "1"}, {}, "MIEN_API_KEYS_SHA256: unknown setting. Did you mean MIEN_API_KEY_SHA256"),
        ({"MIEN_MAX_CLIENT": "1"}, {}, "MIEN_MAX_CLIENT: unknown setting. Did you mean MIEN_MAX_PER_CLIENT"),
        ({"mien_prot": "1"}, {}, "mien_prot: unknown setting. Did you mean MIEN_PORT"),
        ({"MIEN_": "1"}, {}, "MIEN_: unknown setting. Did you mean MIEN_"),
        ({"MIEN_PORT": "70000"}, {}, "MIEN_PORT='70000'"),
        ({"MIEN_API_KEY_SHA256": f"{KEY},secret"}, {}, "MIEN_API_KEY_SHA256: expected the SHA-256 of each key"),
        *(({f"MIEN_{name}": ""}, {}, f"MIEN_{name}='': .*empty") for name in PLACES),
        ({"MIEN_DEVICE": "cuda"}, {"device": "gpu"}, "device='gpu': .*'cpu' or 'cuda'"),
        ({}, {"min_fac_px": 24}, "min_fac_px: unknown setting. Did you mean min_face_px"),
        ({"MIEN_API_KEY_SHA256": KEY}, {"extra_models": "fast"}, "extra_models: fast, fast"),
        # no browser sends these
        *(
            ({}, {"cors_origins": text}, "cors_origins=.*: .*expected origins ")
            for text in ("app.example/", "https://app.example/", "https://App.example", "https://a,b")
        ),
        *(
            ({}, {"allowed_hosts": text}, "allowed_hosts=.*: .*expected host names ")
            for text in ("https://mien.example", "mien.example:8443", "*.mien.example")
        ),
    ],
)
def test_a_wrong_setting_prevents_the_start_and_is_named_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(os, "environ", os.environ | variables)
    with pytest.raises(SettingsError, match=f"^{message}") as error:
        load_settings(**arguments)
    assert "secret" not in str(error.value)
    assert "[" not in str(error.value), "no regular expression"


@pytest.mark.parametrize("model", [None, "fast", "./fast", "runs/mine"])
def test_workers_get_every_option_despite_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str | None
) -> None:
    monkeypatch.setitem(os.environ, "MIEN_DEVICE", "cuda")
    monkeypatch.setitem(os.environ, "MIEN_MODEL", "another")
    monkeypatch.setitem(os.environ, "MIEN_DATA_DIR", "sets")  # of training
    chosen = Settings(
        device="auto", model=model, models_dir=tmp_path, cors_origins="https://a.example,https://b.example",
        detect_rotated=False, detection_threshold=0.5, api_key_sha256=KEY,
    )  # fmt: skip
    server._export(chosen)
    assert load_settings() == chosen
    assert os.environ.get("MIEN_MODEL") == model


@pytest.mark.parametrize("name", ["deploy/kubernetes.yaml", "compose.yaml", "Dockerfile"])
def test_deployment_files_use_settings_that_exist(name: str) -> None:
    found = set(re.findall(r"MIEN_[A-Z0-9_]+", (ROOT / name).read_text(encoding="utf-8")))
    assert found
    assert found <= set(environment(Settings()))
