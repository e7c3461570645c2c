"""Programs of docs/models.md, its reference output, and Triton's configuration, against the released photo graph."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from mien.data.contract import decode
from mien.models.manifest import artifact_dir
from mien.training.evaluate import open_graph
from tests.support import ROOT, output_of

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"<!-- test -->\n```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
GRAPH, PHOTO = artifact_dir(None) / "photo.onnx", ROOT / "samples" / "photos" / "grace_hopper.jpg"
TYPES = {"TYPE_UINT8": "uint8", "TYPE_FP32": "float32", "TYPE_BOOL": "bool"}


def assert_neutral(printed: str) -> None:
    (line,) = printed.splitlines()
    box, label, confidence = re.fullmatch(r"\[([\d., ]+)\] (\w+) ([\d.]+)\s*", line).groups()  # type: ignore[union-attr]
    assert [float(side) for side in re.findall(r"\d+", box)] == pytest.approx([171, 107, 192, 224], abs=2)
    assert (label, float(confidence)) == ("neutral", pytest.approx(0.643, abs=0.02))


def test_the_program_in_python_labels_a_photo() -> None:
    assert_neutral(output_of(sys.executable, "-c", PROGRAMS["python"], GRAPH, PHOTO))


@pytest.mark.registry
def test_the_program_in_javascript_labels_a_photo(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm is not installed")
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "onnxruntime-node", "sharp"]
    subprocess.run(install, cwd=tmp_path, check=True)
    (tmp_path / "faces.mjs").write_text(PROGRAMS["js"], encoding="utf-8")
    assert_neutral(output_of(node, tmp_path / "faces.mjs", GRAPH, PHOTO))


def test_the_reference_output_is_that_of_the_graph() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([-\d.,  a-z]+) \|$", PAGE.split("### Check a port")[1], re.MULTILINE))
    assert set(rows) == {"boxes", "landmarks", "detection_scores", "probabilities", "agreement", "uncertain"}
    found = open_graph(GRAPH).run(list(rows), {"photo": decode(PHOTO.read_bytes())})
    for values, (name, text) in zip(found, rows.items(), strict=True):
        expected = [float({"true": "1", "false": "0"}.get(value, value)) for value in text.split(", ")]
        tolerance = 2 if name in {"boxes", "landmarks"} else 0.02
        assert np.ravel(values).astype(float) == pytest.approx(expected, abs=tolerance), name


def test_the_page_and_triton_name_the_inputs_and_outputs_of_the_graph_with_their_types_and_dimensions() -> None:
    config = (ROOT / "deploy" / "triton" / "faces" / "config.pbtxt").read_text(encoding="utf-8")
    stated = re.findall(r'name: "(\w+)"\s+data_type: (\w+)\s+dims: \[([-\d, ]+)\]', config)
    graph, expected = onnx.load(GRAPH).graph, []
    for value in (graph.input[0], *graph.output):
        tensor = value.type.tensor_type
        kind = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        expected.append((value.name, kind, ", ".join(str(side.dim_value or -1) for side in tensor.shape.dim)))
    assert [(name, TYPES[kind], sides.strip()) for name, kind, sides in stated] == expected
    assert re.search(r"max_batch_size: 0\b", config)
    assert "onnxruntime" in config
    table = PAGE.split("### Inputs and outputs")[1].split("### Check a port")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [value.name for value in (*graph.input, *graph.output)]
