"""Settings from the environment: strict parsing, and unchanged settings in worker processes."""

import os
import re
from pathlib import Path

import pytest

from mien.app.errors import SettingsError
from mien.app.service import server
from mien.app.settings import Settings, environment, load_settings
from tests.support import ROOT, environment_of

PLACES = ("MODEL", "JOBS_DIR", "MODELS_DIR", "API_KEYS_FILE", "HOST")


@pytest.fixture(autouse=True)
def only_these_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", environment_of())


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("MIEN_API_KEYS_SHA256", "MIEN_API_KEY_SHA256"),
        ("MIEN_MAX_CLIENT", "MIEN_MAX_PER_CLIENT"),
        ("mien_prot", "MIEN_PORT"),
        ("MIEN_", "MIEN_"),
    ],
)
def test_a_misspelled_variable_is_rejected_with_the_closest_name(
    found: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, found, "1")
    with pytest.raises(SettingsError, match=rf"^{found}: unknown setting\. Did you mean {meant}"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MIEN_PORT", "70000", "MIEN_PORT='70000'"),
        ("MIEN_API_KEY_SHA256", f"{'ab' * 32},secret", "MIEN_API_KEY_SHA256: expected the SHA-256 of each key"),
        *((f"MIEN_{name}", "", f"MIEN_{name}='': .*empty") for name in PLACES),
    ],
)
def test_a_wrong_value_names_its_variable_and_prints_no_key(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setitem(os.environ, variable, value)
    with pytest.raises(SettingsError, match=f"^{message}") as caught:
        load_settings()
    assert "secret" not in str(caught.value)


def test_an_argument_is_named_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MIEN_DEVICE", "cuda")
    monkeypatch.setitem(os.environ, "MIEN_DATA_DIR", "sets")  # of training
    for name, value, message in (
        ("device", "gpu", r"^device='gpu': .*'cpu' or 'cuda'"),
        ("min_fac_px", 24, r"^min_fac_px: unknown setting\. Did you mean min_face_px\?"),
        ("extra_models", "fast", r"^extra_models: fast, fast"),
    ):
        with pytest.raises(SettingsError, match=message):
            load_settings(**{name: value})


@pytest.mark.parametrize("model", [None, "fast", "./fast", "runs/mine"])
def test_workers_get_every_option_despite_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str | None
) -> None:
    monkeypatch.setitem(os.environ, "MIEN_DEVICE", "cuda")
    monkeypatch.setitem(os.environ, "MIEN_MODEL", "another")
    chosen = Settings(
        device="auto", model=model, models_dir=tmp_path, cors_origins="https://a.example,https://b.example",
        detect_rotated=False, detection_threshold=0.5, api_key_sha256="ab" * 32,
    )  # fmt: skip
    server._export(chosen)
    assert load_settings() == chosen
    assert os.environ.get("MIEN_MODEL") == model


@pytest.mark.parametrize("name", ["deploy/kubernetes.yaml", "compose.yaml", "Dockerfile"])
def test_deployment_files_use_settings_that_exist(name: str) -> None:
    found = set(re.findall(r"MIEN_[A-Z0-9_]+", (ROOT / name).read_text(encoding="utf-8")))
    assert found
    assert found <= set(environment(Settings()))
