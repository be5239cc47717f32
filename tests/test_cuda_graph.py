import pytest
import torch

from cgnl.cuda_graph import capture


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_capture_clears_before_each_step():
    x, seen = torch.ones(2, device="cuda"), []
    graph, y = capture(lambda: x * 2, lambda: seen.append(1))
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10, 10]
    assert len(seen) == 4
