import pytest

from cgnl.commands.export import SUFFIXES
from cgnl.export import files


def test_export_knows_the_suffixes_without_importing_them():
    assert SUFFIXES == files.SUFFIXES


@pytest.mark.parametrize("out", ["model", "model.onx", "model.pth"])
def test_export_refuses_a_file_of_another_kind(cgnl, out):
    status, printed, err = cgnl("export", "last.ckpt", out)
    assert (status, printed) == (2, "")
    assert all(word in err for word in (f"{out} ", *SUFFIXES))
