"""The training state is one file, replaced as a whole."""

import pytest
import torch

from servelab.speculative.head import initial_network
from servelab.training.state import CurvePoint, Progress, load_state, save_state


@pytest.fixture
def trained(target):
    """A head after two steps of an optimizer, so that there are moments to keep."""
    network = initial_network(target, seed=1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(2):
        sum(parameter.square().sum() for parameter in network.parameters()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return network, optimizer


def progress():
    point = CurvePoint(minutes=0.5, step=3, tokens=70, loss=1.25, acceptance=(0.5, 0.25), tokens_per_step=1.6)
    return Progress(step=3, epoch=1, batch=2, tokens=70, seconds=30.5, loss=1.25, curve=[point])


def test_everything_comes_back(target, trained, tmp_path):
    network, optimizer = trained
    save_state(tmp_path / "state", network, optimizer, progress())
    other = initial_network(target, seed=2)
    fresh = torch.optim.AdamW(other.parameters(), lr=0.01)
    assert load_state(tmp_path / "state", other, fresh) == progress()
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert one.equal(two)
        assert {name: float(value.sum()) for name, value in optimizer.state[one].items()} == {
            name: float(value.sum()) for name, value in fresh.state[two].items()
        }


def test_before_the_first_step_there_are_no_moments(target, tmp_path):
    network = initial_network(target)
    optimizer = torch.optim.AdamW(network.parameters())
    save_state(tmp_path / "state", network, optimizer, Progress())
    load_state(tmp_path / "state", network, optimizer)
    assert not optimizer.state


def test_no_file_is_a_fresh_start(target, trained, tmp_path):
    network, optimizer = trained
    before = [parameter.clone() for parameter in network.parameters()]
    assert load_state(tmp_path / "state", network, optimizer) == Progress()
    assert all(one.equal(two) for one, two in zip(before, network.parameters(), strict=True))


def test_an_interrupted_write_leaves_the_state_before(target, trained, tmp_path, monkeypatch):
    network, optimizer = trained
    save_state(tmp_path / "state", network, optimizer, progress())

    def cut_off(tensors, partial, metadata):
        partial.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("servelab.training.state.save_file", cut_off)
    with pytest.raises(OSError, match="no space left"):
        save_state(tmp_path / "state", network, optimizer, Progress(step=9))
    assert load_state(tmp_path / "state", network, optimizer).step == 3
