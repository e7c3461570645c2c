"""Journal of an output folder: inputs, results and written files. All SQL of labeling is in this folder."""

from mien.app.labeling.journal.view import LabeledImage, View, earlier_facts, files_written_in, open_view
from mien.app.labeling.journal.writer import Journal, Stored

__all__ = ["Journal", "LabeledImage", "Stored", "View", "earlier_facts", "files_written_in", "open_view"]
