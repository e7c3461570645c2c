"""Mapping of errors to HTTP responses."""

import pytest

from mien.app import errors
from mien.app.errors import CapacityError, RequestError
from mien.app.service.problems import INTERNAL, PROBLEMS, problem_for
from mien.data.contract import DecodeError, ImageTooLarge, UnsupportedImage
from mien.data.errors import MienError


def tree(root: type[Exception]) -> set[type[Exception]]:
    return {root}.union(*(tree(kind) for kind in root.__subclasses__()))


def test_every_error_has_a_row_in_the_table() -> None:
    leaves = {
        kind for root in (RequestError, CapacityError, DecodeError) for kind in tree(root) if not kind.__subclasses__()
    }
    for kind in leaves:
        assert problem_for(kind("found")) is not INTERNAL, kind


def test_the_first_matching_row_is_the_most_specific() -> None:
    kinds = [kind for kind, _ in PROBLEMS]
    for index, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:index]), kind


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ImageTooLarge("x"), 413),
        (UnsupportedImage("x"), 415),
        (DecodeError("x"), 422),
        (errors.QueueFull("x"), 503),
        (errors.Unauthorized("x"), 401),
        (errors.TooManyRequests("x"), 429),
        (MienError("x"), 500),
        (RuntimeError("x"), 500),
    ],
)
def test_an_error_becomes_its_status(error: Exception, status: int) -> None:
    assert problem_for(error).status == status


def test_every_temporary_error_has_a_retry_time() -> None:
    for _, problem in PROBLEMS:
        assert (problem.retry_after_s is not None) == (problem.status in {429, 503}), problem.slug


def test_slugs_are_unique() -> None:
    slugs = [problem.slug for _, problem in PROBLEMS]
    assert len(slugs) == len(set(slugs))
