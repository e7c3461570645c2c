"""Mapping of errors to HTTP responses."""

from mien.app.errors import CapacityError, RequestError
from mien.app.service.problems import INTERNAL, PROBLEMS, problem_for
from mien.data.contract import DecodeError
from mien.data.errors import MienError


def tree(root: type[Exception]) -> set[type[Exception]]:
    return {root}.union(*(tree(kind) for kind in root.__subclasses__()))


def test_every_error_has_a_row_in_the_table() -> None:
    leaves = {
        kind for root in (RequestError, CapacityError, DecodeError) for kind in tree(root) if not kind.__subclasses__()
    }
    for kind in leaves:
        assert problem_for(kind("found")) is not INTERNAL, kind
    assert problem_for(MienError("found")) is problem_for(RuntimeError("found")) is INTERNAL


def test_the_first_matching_row_is_the_most_specific() -> None:
    kinds = [kind for kind, _ in PROBLEMS]
    for index, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:index]), kind


def test_every_temporary_error_has_a_retry_time() -> None:
    for _, problem in PROBLEMS:
        assert (problem.retry_after_s is not None) == (problem.status in {429, 503}), problem.slug
