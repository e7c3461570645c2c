"""Fine-tuning of the released model on class folders improves its accuracy on them."""

from pathlib import Path

from data.contract import LABELS
from models.manifest import default_artifact_dir
from tests.data_sets import make_folders
from training.config import read_recipe
from training.evaluate import open_graph, read_split, run_graph
from training.loop.run_folder import load_best
from training.train import train

RECIPE = Path(__file__).parents[3] / "training" / "recipes" / "folders_hybrid_tiny.yaml"


def test_the_release_can_be_fine_tuned_on_new_faces(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 25)})
    released = default_artifact_dir()
    roots = [f"data.train.0.root={root}", f"data.valid.root={root}", f"data.cache_dir={tmp_path / 'cache'}"]
    source = [f"model.init_from={released}", f"distillation.teachers=[{released}]"]
    budget = ["epochs=3", "batch_size=16", "optim.learning_rate=5e-4", "optim.ema_decay=0.8", "runtime.workers=0"]
    tuned = load_best(train(read_recipe(RECIPE, [*roots, *source, *budget]), tmp_path / "run"))[1]["accuracy"]

    crops, labels, _ = read_split("folders", root, "valid", {"valid_share": 0.2})
    before = (run_graph(open_graph(released / "model.onnx"), crops).argmax(axis=1) == labels).mean()
    assert len(labels) >= 14
    assert tuned > before + 0.1
