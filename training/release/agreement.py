"""Agreement: how many people would choose each expression, fitted to the votes for the faces of validation.

    mien export models/artifacts/NAME --agreement
    mien evaluate --artifact models/artifacts/NAME --data ferplus=path/to/ferplus --agreement

A probability says how often the label is that of the majority; agreement is the share of raters who would choose it.
One temperature and an offset per expression turn the log probabilities of a face into expected votes (multinomial
maximum likelihood). In serving, they are softened with the probabilities (`soften` in data/quality.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import pearsonr

from mien.data.contract import Array
from mien.data.errors import DatasetError
from mien.models.manifest import Agreement, Interval, Manifest, VotedFaces
from mien.training import metrics
from mien.training.config import DataSource
from mien.training.data import Split, read_voted
from mien.training.evaluate import Model
from mien.training.release.operating_point import folds
from mien.training.wording import interval, percent, print_table


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """Expected and actual shares of raters who choose the label of each face, (N,) each."""

    expected: Array
    actual: Array

    @classmethod
    def of(cls, expected: Array, votes: Array, labels: Array) -> "Votes":
        """Take those of the labels, (N,), from expected shares and numbers of votes, (N, K) each."""
        rows = np.arange(len(labels))
        return cls(expected[rows, labels], votes[rows, labels] / votes.sum(axis=1))

    @property
    def errors(self) -> dict[str, Interval]:
        """Mean absolute error, that of the mean share for all faces, and Pearson's correlation."""
        result = pearsonr(self.expected, self.actual)
        return {
            "error": metrics.mean(np.abs(self.expected - self.actual)),
            "error_of_mean": metrics.mean(np.abs(self.actual.mean() - self.actual)),
            "correlation": Interval(*map(float, (result.statistic, *result.confidence_interval()))),
        }

    def by_tenth(self) -> tuple[VotedFaces, ...]:
        """Mean expected and actual shares by tenths of the expected ones."""
        tenth = np.minimum((self.expected * 10).astype(int), 9)
        return tuple(
            VotedFaces(
                faces=int(chosen.sum()),
                expected=float(self.expected[chosen].mean()),
                votes=metrics.mean(self.actual[chosen]),
            )
            for chosen in (tenth == number for number in np.unique(tenth))
        )


def fit_votes(log_probabilities: Array, votes: Array) -> tuple[float, tuple[float, ...]]:
    """Temperature and offsets that make votes (N, K) most likely, given natural log probabilities (N, K)."""

    def loss(parameters: Array) -> float:
        log_shares = log_softmax(log_probabilities / np.exp(parameters[0]) + parameters[1:], axis=1)
        return float(-(votes * log_shares).sum() / votes.sum())

    log_temperature, *offsets = minimize(loss, np.zeros(1 + votes.shape[1]), method="BFGS").x
    return round(float(np.exp(log_temperature)), 4), tuple(np.round(offsets - np.mean(offsets), 4).tolist())


def cross_fitted(log_probabilities: Array, votes: Array) -> Array:
    """Expected shares (N, K) of each face, fitted on other faces."""
    expected = np.empty(votes.shape)
    for held_out in folds(len(votes)):
        temperature, offsets = fit_votes(log_probabilities[~held_out], votes[~held_out])
        expected[held_out] = softmax(log_probabilities[held_out] / temperature + np.array(offsets), axis=1)
    return expected


def measure_agreement(manifest: Manifest, classify: Callable[[Array], Array], faces: Split) -> Manifest:
    """Fit the agreement to the votes for faces, and measure it cross-fitted.

    Args:
        manifest: with temperature and correction.
        classify: logits (N, K) of crops (N, 112, 112, 3) uint8 RGB.
    """
    logits, all_votes = classify(faces.crops), np.asarray(faces.votes)
    log_probabilities, labels = _log_natural(manifest, logits), _labels(manifest, logits)
    temperature, offsets = fit_votes(log_probabilities, all_votes)
    votes = Votes.of(cross_fitted(log_probabilities, all_votes), all_votes, labels)
    fitted = Agreement(
        temperature=temperature,
        offsets=offsets,
        data=faces.kind,
        split=faces.name,
        faces=len(faces),
        command=f"mien export models/artifacts/{manifest.name} --agreement",
        reliability=votes.by_tenth(),
        **votes.errors,
    )
    return manifest.model_copy(update={"agreement": fitted})


def evaluate_agreement(manifest: Manifest, classify: Callable[[Array], Array], faces: Split) -> Votes:
    """Expected and actual votes of faces; cross-fitted on the split that the agreement was fitted to."""
    assert manifest.agreement is not None, "checked by the command"  # noqa: S101
    logits, votes = classify(faces.crops), np.asarray(faces.votes)
    if (faces.kind, faces.name) == (manifest.agreement.data, manifest.agreement.split):
        expected = cross_fitted(_log_natural(manifest, logits), votes)
    else:
        expected = manifest.votes(manifest.probabilities(logits, "balanced"), "balanced")
    return Votes.of(expected, votes, _labels(manifest, logits))


def print_agreement(model: Model, source: DataSource) -> tuple[VotedFaces, ...]:
    """Print how the expected votes meet those of a split, and return them by tenths. Raises: DatasetError."""
    faces, manifest = read_voted(source, model.labels), model.manifest
    if faces is None:
        raise DatasetError(f"--agreement: {source.kind} has no votes for its labels")
    if manifest is None or manifest.agreement is None:
        raise DatasetError(f"--agreement: {model.name} has no agreement")
    votes = evaluate_agreement(manifest, model.logits, faces)
    rows = [(f"{part.faces:,}", percent(part.expected), interval(part.votes, 1)) for part in votes.by_tenth()]
    error, of_mean, correlation = votes.errors.values()
    caption = f"mean error {interval(error, 1)} points, of the mean {interval(of_mean, 1)}; "
    caption += f"correlation {correlation.value:.2f}"
    title = f"{model.name} on {faces.kind} {faces.name}, {len(faces):,} faces: agreement, in % (95 % interval)"
    print_table(("faces", "agreement", "votes"), rows, title=title, caption=caption)
    return votes.by_tenth()


def _log_natural(manifest: Manifest, logits: Array) -> Array:
    return np.log(np.maximum(manifest.probabilities(logits, "natural"), 1e-12))


def _labels(manifest: Manifest, logits: Array) -> Array:
    """Labels (N,) that are served."""
    return np.asarray(manifest.probabilities(logits, "balanced").argmax(axis=1))
