"""The list of mutations fits the code: `make mutations` runs them."""

from tests.mutations import ROOT, all_mutations


def test_every_mutation_can_be_applied_and_has_tests() -> None:
    mutations = all_mutations()
    assert len(mutations) >= 60
    for mutation in mutations:
        mutation.file_in(ROOT)
        mutation.tests_in(ROOT)
