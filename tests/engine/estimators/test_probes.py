"""Random signs and the rule that ends a run of draws."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from spiritlevel.engine.estimators.probes import STREAM, random_signs, until
from spiritlevel.inputs.splitmix import splitmix64
from spiritlevel.values.draws import Samples, student_quantile
from spiritlevel.values.errors import UsageError


def test_probe_is_the_same_whatever_the_blocking() -> None:
    together = random_signs(50, 7, seed=3)
    assert together.shape == (50, 7)
    assert torch.equal(together.abs(), torch.ones(50, 7))
    for j in range(7):
        assert torch.equal(random_signs(50, 1, seed=3, first=j)[:, 0], together[:, j])
    assert torch.equal(random_signs(50, 4, seed=3, first=2), together[:, 2:6])
    assert torch.equal(random_signs(50, 7, seed=3, dtype=torch.float64), together.double())


@pytest.mark.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def test_signs_are_the_same_on_every_device_and_in_every_release(device: str) -> None:
    found = random_signs(70, 2, seed=5, first=3, device=device).cpu()
    written = ["".join("+" if sign > 0 else "-" for sign in column) for column in found.T.tolist()]
    assert written == [
        "++++++-+--+---+++--+-+-+-++---++-+--+-+--+-++---+--+--++------++------",
        "------++++++--+--+-++--++-+---+---++-+++--+-----+-++-----+-+--+-+--+++",
    ]


def test_signs_are_those_of_the_words_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    size, seed, probe = 1000, 2**70 + 9, 4
    whole = random_signs(size, 1, seed=seed, first=probe)[:, 0]
    state = splitmix64(0, torch.tensor(seed % 2**63))
    for number in (STREAM, probe):
        state = splitmix64(state, torch.tensor(number))
    words = splitmix64(state, torch.arange(-(-size // 64)))
    bits = (words[:, None] >> torch.arange(64)) & 1
    assert torch.equal(whole, (bits.reshape(-1)[:size] * 2 - 1).float())
    monkeypatch.setattr("spiritlevel.engine.estimators.probes.WORDS_AT_ONCE", 3)
    assert torch.equal(random_signs(size, 1, seed=seed, first=probe)[:, 0], whole)
    assert torch.equal(random_signs(size - 37, 1, seed=seed, first=probe)[:, 0], whole[:-37])


def test_probes_of_neighbouring_seeds_and_indices_are_unrelated() -> None:
    columns = torch.cat([random_signs(4000, 6, seed=seed, dtype=torch.float64) for seed in (0, 1)], dim=1)
    correlation = columns.T @ columns / 4000 - torch.eye(12)
    assert correlation.abs().max() < 5 / math.sqrt(4000)
    assert columns.mean().abs() < 5 / math.sqrt(columns.numel())


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    random_signs(10, 2)
    assert torch.equal(torch.rand(3), expected)


def test_samples_against_the_standard_library() -> None:
    draws = [1.0, 4.0, -2.0, 7.5, 0.25]
    samples = Samples()
    assert math.isnan(samples.mean)
    samples.add(draws[:1])
    assert samples.stderr == math.inf
    samples.add(draws[1:])
    assert samples.mean == pytest.approx(statistics.mean(draws), rel=1e-15)
    assert samples.stderr == pytest.approx(statistics.stdev(draws) / math.sqrt(5), rel=1e-14)
    low, high = samples.interval(0.95)
    assert (high - low) / 2 == pytest.approx(2.7764451 * samples.stderr, rel=1e-7)  # t quantile, 4 degrees
    assert samples.values == draws
    assert student_quantile(10**6) == pytest.approx(1.96, abs=1e-3)


def test_stops_at_the_standard_error_and_not_before() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = (1.0 + 0.5 * torch.randn(4000, generator=generator, dtype=torch.float64)).tolist()
    asked: list[tuple[int, int]] = []

    def draw(first: int, count: int) -> list[float]:
        asked.append((first, count))
        return draws[first : first + count]

    samples, status = until(draw, tolerance=0.02, minimum=10, maximum=4000, block=16)
    assert status == "ok"
    assert samples.stderr <= 0.02 * abs(samples.mean)
    # About (0.5 / 0.02)^2 = 625 draws are needed; the block before the last must have been too few.
    assert 400 < samples.count < 900
    before = Samples(samples.values[: asked[-1][0]])
    assert before.stderr > 0.02 * abs(before.mean)
    assert samples.values == draws[: samples.count]


def test_a_running_mean_that_stands_still_is_no_reason_to_stop() -> None:
    # +1, -1 around 1: after every second draw the running mean is exactly where it was.
    samples, status = until(lambda first, count: [2.0 * ((first + i) % 2) for i in range(count)], tolerance=1e-3)
    assert status == "budget_spent"
    assert samples.count == 256


def test_minimum_is_honoured_and_equal_draws_end_it() -> None:
    samples, status = until(lambda first, count: [0.0] * count, tolerance=0.1, minimum=12, maximum=100, block=5)
    assert (samples.count, status) == (12, "ok")
    with pytest.raises(UsageError, match="minimum=1"):
        until(lambda first, count: [0.0] * count, tolerance=0.1, minimum=1)
    with pytest.raises(UsageError, match="count"):
        random_signs(3, 0)
