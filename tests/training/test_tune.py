"""Fine-tuning of the released model on class folders improves its accuracy on them."""

from pathlib import Path

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir
from mien.training.config import Recipe, read_as
from mien.training.evaluate import compare, open_model
from mien.training.train import train
from tests.support import ROOT
from tests.support.data_sets import make_folders
from tests.support.training import valid_faces

RECIPE = ROOT / "training" / "recipes" / "folders_hybrid_small.yaml"


def test_the_release_can_be_fine_tuned_on_new_faces(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 15)})
    released = artifact_dir(None)
    roots = [f"data.train.0.root={root}", f"data.valid.root={root}", f"data.cache_dir={tmp_path / 'cache'}"]
    source = [f"model.init_from={released}", f"distillation.teachers=[{released}]"]
    budget = ["epochs=2", "batch_size=12", "optim.learning_rate=1e-3", "optim.ema_decay=0.5", "runtime.workers=0"]
    run = train(read_as(Recipe, RECIPE, [*roots, *source, *budget]), tmp_path / "run")

    faces = valid_faces(root, valid_share=0.2)
    assert len(faces) == 21
    models = [open_model(folder) for folder in (released, run)]
    sides = [model.probabilities(model.logits(faces.crops), "natural") for model in models]
    gains = {gain.name: gain.gain.value for gain in compare(sides[0], sides[1], faces.labels)}
    assert gains["accuracy"] > 0.1
