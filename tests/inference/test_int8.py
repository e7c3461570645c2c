"""Choice between fp32 and int8 on a CPU: instruction sets, measurement, and resumed runs."""

from pathlib import Path

import pytest

from mien.app.inference import classifier as classifiers
from mien.app.inference.classifier import Classifier, with_precision
from mien.app.inference.runtime import int8
from mien.app.inference.runtime.sessions import CPU, CUDA
from mien.app.settings import Settings
from tests.support import tiny_artifact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags : fpu avx2 avx512_vnni erms", True),
        ("Features : fp asimd asimddp", True),
        ("flags : fpu avx2 avx512f avx512vnni_like", False),
    ],
)
def test_int8_instructions_are_read_from_cpuinfo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    monkeypatch.setattr(int8.sys, "platform", "linux")
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{text}\n", encoding="utf-8")
    assert int8.has_int8_instructions(tmp_path / "cpuinfo") is expected
    assert not int8.has_int8_instructions(tmp_path / "absent")


def test_int8_is_chosen_from_a_speedup_of_1_3_on_a_cpu_with_its_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_artifact(tmp_path / "tiny.test", precisions=("fp32", "int8"))
    for gain, instructions, expected in ((1.29, True, "fp32"), (1.3, True, "int8"), (9.0, False, "fp32")):
        monkeypatch.setattr(classifiers, "has_int8_instructions", lambda has=instructions: has)
        monkeypatch.setattr(classifiers, "speedup", lambda *_, gain=gain: gain)
        assert Classifier(Settings(model=folder, device="cpu")).precision == expected
        assert Classifier(Settings(model=folder, device="cpu", precision="fp32")).precision == "fp32"


def test_a_choice_is_kept_only_where_the_settings_leave_it_open() -> None:
    assert with_precision(Settings(device="cpu"), "int8", CPU).precision == "int8"
    assert with_precision(Settings(precision="fp32"), "int8", CPU).precision == "fp32"
    assert with_precision(Settings(device="cuda"), "int8", CPU).precision == "auto"
    assert with_precision(Settings(), "fp16", CUDA).precision == "auto"
