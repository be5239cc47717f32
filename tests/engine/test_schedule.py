import itertools

import pytest

from cgnl.engine.config import Optim
from cgnl.engine.schedule import factor, peak, total_epochs

STEPS = 5
RELEASED = Optim(lr=0.01, batch_size=256, epochs=100, warmup_epochs=10, schedule="step", drops=(31, 61, 81))


def factors(optim: Optim) -> list[float]:
    return [factor(optim, STEPS, step) for step in range(total_epochs(optim) * STEPS)]


def test_factor_of_the_released_schedule():
    after = factors(RELEASED)[10 * STEPS :]
    expected = {range(31): 1.0, range(31, 61): 0.1, range(61, 81): 0.01, range(81, 100): 0.001}
    for epochs, value in expected.items():
        for epoch in epochs:
            assert after[epoch * STEPS : (epoch + 1) * STEPS] == pytest.approx([value] * STEPS)
    assert len(after) == 100 * STEPS


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_factor_rises_in_a_line_to_its_peak(schedule):
    optim = Optim(schedule=schedule, warmup_epochs=10, epochs=20)
    rising = factors(optim)[: 10 * STEPS + 1]
    steps = [after - before for before, after in itertools.pairwise(rising)]
    assert rising[0] > 0
    assert steps == pytest.approx([rising[0]] * len(steps))
    assert rising[-1] == 1


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_factor_without_a_warm_up_begins_at_its_peak(schedule):
    assert factor(Optim(schedule=schedule, warmup_epochs=0), STEPS, 0) == 1


def test_factor_of_the_cosine_falls_to_nothing():
    after = factors(Optim(warmup_epochs=2, epochs=40))[2 * STEPS :]
    assert all(later < before for before, later in itertools.pairwise(after))
    assert after[len(after) // 2] == pytest.approx(0.5)
    assert after[len(after) // 4] == pytest.approx((1 + 0.5**0.5) / 2)
    assert 0 < after[-1] < 1e-3
    assert sum(after) / len(after) == pytest.approx(0.5, abs=0.01)


def test_factor_of_the_cosine_stays_at_nothing():
    optim = Optim(warmup_epochs=1, epochs=2)
    assert [factor(optim, STEPS, step) for step in (3 * STEPS, 4 * STEPS)] == [0, 0]


@pytest.mark.parametrize(("batch_size", "expected"), [(256, 0.01), (64, 0.0025), (512, 0.02), (8, 0.01 / 32)])
def test_peak_follows_the_batch(batch_size, expected):
    assert peak(RELEASED, batch_size, pretrained=True) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rate", "pretrained", "expected"),
    [(None, True, 0.01), (None, False, 0.1), (0.3, True, 0.3), (0.3, False, 0.3)],
)
def test_peak_is_smaller_from_trained_weights_unless_given(rate, pretrained, expected):
    assert peak(Optim(lr=rate), 256, pretrained) == pytest.approx(expected)


@pytest.mark.parametrize(("pretrained", "expected"), [(True, 1e-4), (False, 5e-4)])
def test_peak_of_adamw_is_smaller(pretrained, expected):
    assert peak(Optim(optimizer="adamw"), 256, pretrained) == pytest.approx(expected)
    assert peak(Optim(optimizer="adamw"), 256, pretrained, default=0.32) == pytest.approx(expected)


def test_total_epochs_counts_the_warm_up():
    assert total_epochs(RELEASED) == 110
