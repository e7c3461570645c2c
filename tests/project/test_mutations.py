"""Mutants that `make mutations` draws: valid Python that differs in one expression."""

import ast

from tests.mutations import CORE, ROOT, all_mutants


def test_every_mutant_is_valid_and_has_tests() -> None:
    mutants = all_mutants()
    assert {place for place in CORE if not any(mutant.file.startswith(place) for mutant in mutants)} == set()
    assert all((ROOT / test).exists() for tests in CORE.values() for test in tests)
    for mutant in mutants[::101]:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(mutant.text_in(text))) != ast.dump(ast.parse(text)), mutant.described(text)
