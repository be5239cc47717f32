"""``cgnl app`` up to the moment at which the page is served."""

import pytest


@pytest.fixture
def served(monkeypatch):
    """What the page would be served with."""
    calls = []
    monkeypatch.setattr("cgnl.report.app.serve", lambda *given: calls.append(given))
    return calls


def test_app_opens_each_checkpoint(cgnl, checkpoint, served):
    first, second = checkpoint(folder="one"), checkpoint("tiny", "nl", folder="two")
    assert cgnl("app", first, "--device", "cpu")[::2] == (0, "")
    assert cgnl("app", first, second, "--host", "0.0.0.0", "--port", 8000, "--device", "cpu")[::2] == (0, "")
    (alone, *where), (both, *there) = served
    assert [network.title for network in alone] == ["one"]
    assert [network.title for network in both] == ["one", "two"]
    assert (where, there) == (["127.0.0.1", None], ["0.0.0.0", 8000])
    for network in (page.trained.network for page in both):
        assert not network.training
        assert {parameter.device.type for parameter in network.parameters()} == {"cpu"}


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_app_refuses_a_port(cgnl, served, port):
    status, _, err = cgnl("app", "last.ckpt", "--port", port)
    assert (status, served) == (2, [])
    assert f"port = {port} must be" in err


def test_app_refuses_a_network_without_blocks(cgnl, checkpoint, served):
    path = checkpoint(block=None)
    status, _, err = cgnl("app", path, "--device", "cpu")
    assert (status, served) == (2, [])
    assert f"{path} has no NL or CGNL block" in err
