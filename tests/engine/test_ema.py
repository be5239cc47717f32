import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cgnl.engine.ema import Average


def test_average_is_that_of_torch():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours = Average(network, 0.9)
    theirs = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(4):
        network(torch.randn(8, 3))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        ours.update(network)
        theirs.update_parameters(network)
    assert ours.updates == int(theirs.n_averaged) == 4
    for name, value in theirs.module.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(ours.module.state_dict()[name], value)
    assert ours.module.get_buffer("1.num_batches_tracked") == 4
