import json

import pytest

from cgnl.extras import need, with_extra


def test_need_imports_a_module():
    assert need("json", "cli") is json


def test_need_names_the_extra_that_brings_a_missing_module():
    with pytest.raises(ModuleNotFoundError, match=r'this needs no_such_module: pip install "cgnl\[cli\]"') as error:
        need("no_such_module.inner", "cli")
    assert error.value.name == "no_such_module"


def test_need_does_not_hide_a_fault_inside_a_package():
    with pytest.raises(ModuleNotFoundError, match=r"json\.nothing"):
        need("json.nothing", "vision")


def test_with_extra_keeps_a_message_that_names_the_extra():
    error = with_extra(ModuleNotFoundError("No module named 'av'", name="av"), "data")
    assert str(error) == 'this needs av: pip install "cgnl[data]"'
    assert with_extra(error, "train") is error
