"""Common precision of the machines of a cluster."""

from mien.app.labeling.ray.cluster import agreed, same_precision


def test_all_machines_run_in_fp32_if_only_some_gain_from_int8() -> None:
    found = {"a": {"model": "m", "precision": "int8"}, "b": {"model": "m", "precision": "fp32"}}
    assert agreed(same_precision(found)) == {"model": "m", "precision": "fp32"}


def test_a_common_precision_is_kept() -> None:
    found = {"a": {"precision": "int8"}, "b": {"precision": "int8"}}
    assert same_precision(found) == found
