"""The public names of the pairwise functions."""

from cgnl import kernels
from cgnl.ops import kernels as defined


def test_kernels_are_those_of_the_operators_and_all_that_have_names():
    assert {name: getattr(kernels, name) for name in kernels.__all__} == {
        name: getattr(defined, name) for name in kernels.__all__
    }
    assert set(defined.BY_NAME.values()) < {getattr(kernels, name) for name in kernels.__all__}
