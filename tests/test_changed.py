from tests.changed import CORE, ROOT, mirror, select


def test_mirror_of_a_source_file_is_its_test_file():
    assert mirror("src/cgnl/ops/series.py") == "tests/ops/test_series.py"
    assert mirror("src/cgnl/surgery.py") == "tests/test_surgery.py"
    assert mirror("tests/ops/test_series.py") == "tests/ops/test_series.py"


def test_core_is_always_selected():
    assert select([]) == CORE
    assert all((ROOT / name).is_file() for name in CORE)


def test_select_leaves_out_what_is_no_test():
    assert select(["benchmarks/tables.py", "src/cgnl/no_such.py", "tests/conftest.py"]) == CORE
    assert "tests/ops/test_pooling.py" in select(["src/cgnl/ops/pooling.py"])
