"""Training: the loop against formulas written out by hand, schedules, averaging, stopping, and stacked networks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.lab import datasets, nets, training
from spiritlevel.lab.training.order import epoch_batches, stacked_epoch_batches, steps_per_epoch
from spiritlevel.values.errors import UsageError

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def digits(count: int) -> datasets.LabelledData:
    return datasets.load("digits").subset(slice(0, count))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def small(seed: int = 0, **args: Any) -> nn.Module:
    return nets.build("digits_mlp", seed=seed, **{"widths": (8,), **args}).double()


def test_a_step_is_the_formula_of_momentum_with_decay() -> None:
    data = digits(50)
    model = nets.build("softmax_regression", size=28, seed=0).double()
    x = datasets.fit_images(data, 28).x.double()
    w, b = (p.detach().clone() for p in model.parameters())
    z_w, z_b = torch.zeros_like(w), torch.zeros_like(b)
    for _ in range(3):  # z ← μ z + ∇L + γ w, w ← w − α z, with ∇L of an affine classifier in closed form
        residual = torch.softmax(x.flatten(1) @ w.T + b, dim=1) - nn.functional.one_hot(data.y, 10)
        z_w = 0.9 * z_w + residual.T @ x.flatten(1) / 50 + 0.01 * w
        z_b = 0.9 * z_b + residual.mean(0) + 0.01 * b
        w, b = w - 0.5 * z_w, b - 0.5 * z_b
    record = training.train(model, (x, data.y), lr=0.5, momentum=0.9, weight_decay=0.01, batch_size=50, steps=3)
    torch.testing.assert_close(flat(model), torch.cat([w.flatten(), b]), rtol=0, atol=1e-13)
    assert (record.steps, len(record.epochs), record.stopped_by) == (3, 3, "steps")
    assert not model.training


def test_the_seed_decides_everything_and_nothing_leaks() -> None:
    data = digits(96)
    runs = []
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    for seed in (4, 4, 5):
        model = nn.Sequential(small(), nn.Dropout(0.2))
        training.train(model, data, lr=0.1, batch_size=32, epochs=2, seed=seed)
        runs.append(flat(model))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_every_epoch_is_a_permutation_with_an_uneven_last_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = ([batch.tolist() for batch in epoch_batches(10, 4, generator)] for _ in range(2))
    assert [len(batch) for batch in first] == [4, 4, 2]
    for epoch in (first, second):
        assert sorted(index for batch in epoch for index in batch) == list(range(10))
    assert first != second
    assert [len(batch) for batch in epoch_batches(10, 4, generator, drop_last=True)] == [4, 4]
    assert steps_per_epoch(10, 4) == 3
    ours, own = ([torch.Generator().manual_seed(seed) for seed in (3, 4)] for _ in range(2))
    for stacked, *alone in zip(stacked_epoch_batches(10, 4, ours), *(epoch_batches(10, 4, each) for each in own)):
        assert torch.equal(stacked, torch.stack(alone))
    seen: list[int] = []
    record = training.train(
        small(), digits(10), lr=0.1, batch_size=4, steps=5, on_step=lambda step, model, loss: seen.append(step)
    )
    assert seen == [1, 2, 3, 4, 5]
    assert [row.step for row in record.epochs] == [3, 5]


def test_epoch_records_are_means_over_samples() -> None:
    model, data = small(), digits(10)
    start = training.evaluate(model, data)
    record = training.train(model, data, lr=0.0, batch_size=4, epochs=1)
    assert record.epochs[0].loss == pytest.approx(start.loss, rel=1e-12)
    assert record.epochs[0].accuracy == pytest.approx(start.accuracy)


def test_granziol_schedules() -> None:
    eq_14 = training.linear()
    for t, factor in ((0.0, 1.0), (0.5, 1.0), (0.7, 0.505), (0.9, 0.01), (0.95, 0.01)):
        assert eq_14(t) == pytest.approx(factor)
    eq_15 = training.averaging()
    assert eq_15(0.7 * 161 / 300) == pytest.approx(0.75)
    assert eq_15(161 / 300) == eq_15(0.9) == pytest.approx(0.5)
    assert training.cosine()(0.5) == pytest.approx(0.5)
    record = training.train(small(), digits(20), lr=2.0, batch_size=10, epochs=10, schedule="linear")
    assert [row.lr for row in record.epochs] == pytest.approx([2 * eq_14(epoch / 10) for epoch in range(10)])
    by_step = training.train(small(), digits(20), lr=2.0, batch_size=10, steps=10, schedule=training.linear(0.1))
    assert by_step.epochs[-1].lr == pytest.approx(2 * training.linear(0.1)(0.9))
    assert "linear" in by_step.settings["schedule"]


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_adams_are_torchs(name: str, kind: Any) -> None:
    data, model, twin = digits(30), small(), small()
    training.train(model, data, optimizer=name, lr=0.01, weight_decay=0.25, batch_size=30, steps=5)
    method = kind(twin.parameters(), lr=0.01, weight_decay=0.25)
    for _ in range(5):
        method.zero_grad()
        nn.functional.cross_entropy(twin(data.x.double()), data.y).backward()
        method.step()
    torch.testing.assert_close(flat(model), flat(twin), rtol=0, atol=1e-12)


def test_averaging_is_the_mean_of_the_epochs_with_fresh_batch_norm() -> None:
    data = datasets.fit_images(digits(60), 28)
    model = nets.build("fcnbn", widths=(6,), seed=0).double()
    ends: list[Tensor] = []
    record = training.train(
        model, data, lr=0.1, batch_size=20, epochs=5, average_from=2, on_epoch=lambda row, m: ends.append(flat(m))
    )
    averaged: Any = record.averaged
    torch.testing.assert_close(flat(averaged), torch.stack(ends[2:]).mean(0), rtol=0, atol=1e-13)
    assert not torch.equal(flat(averaged), flat(model))
    features = averaged[1](data.x.double().flatten(1)).detach()
    torch.testing.assert_close(averaged[2].running_mean, features.mean(0), rtol=0, atol=1e-12)
    variances = torch.stack([part.var(0) for part in features.split(20)]).mean(0)
    torch.testing.assert_close(averaged[2].running_var, variances, rtol=0, atol=1e-12)
    assert not averaged.training


def test_loss_target_and_gradient_rule_end_training() -> None:
    data = digits(40)
    record = training.train(small(), data, lr=0.5, batch_size=10, epochs=500, stop=training.LossTarget(0.1))
    assert record.loss < 0.1 <= record.epochs[-2].loss
    assert "below 0.1" in record.stopped_by
    capped = training.train(small(), data, lr=0.5, batch_size=10, epochs=1, stop=training.LossTarget(0.1))
    assert capped.stopped_by == "epochs"

    # With one batch an epoch and the weights then moved by lr = 0, the epoch's mean gradient is the gradient itself.
    model = small()
    nn.functional.cross_entropy(model(data.x.double()), data.y).backward()
    largest = float(dict(model.named_parameters())["3.weight"].grad.abs().max())  # type: ignore[union-attr]
    for slack, epochs in ((1.01, 1), (0.99, 3)):
        rule = training.GradientRule("3.weight", tolerance=slack * largest)
        record = training.train(small(), data, lr=0.0, batch_size=40, epochs=3, stop=rule)
        assert len(record.epochs) == epochs
    with pytest.raises(UsageError, match=r"did you mean 3\.weight"):
        training.train(small(), data, lr=0.1, epochs=1, stop=training.GradientRule("3.weigth"))


def test_divergence_is_recorded_not_hidden() -> None:
    record = training.train(small().float(), digits(40), lr=1e30, batch_size=10, epochs=5)
    assert record.diverged
    assert len(record.epochs) < 5
    assert "smaller learning rate" in record.stopped_by
    assert training.TrainingRecord({}).loss != 0
    assert not training.TrainingRecord({}).diverged


def test_evaluation_agrees_with_one_batch_and_puts_the_mode_back() -> None:
    data = datasets.fit_images(digits(50), 28)
    model = nets.build("fcnbn", widths=(6,), seed=0).double().train()
    model.get_submodule("2").eval()
    modes = [module.training for module in model.modules()]
    found = training.evaluate(model, data, batch_size=7)
    assert [module.training for module in model.modules()] == modes
    outputs = model.eval()(data.x.double())
    assert found.loss == pytest.approx(float(nn.functional.cross_entropy(outputs, data.y).detach()), rel=1e-12)
    assert found.accuracy == pytest.approx(float((outputs.argmax(1) == data.y).double().mean()))


def test_a_real_network_learns_the_digits() -> None:
    model = nets.build("digits_mlp", seed=0)
    training.train(model, datasets.load("digits"), lr=0.1, momentum=0.9, batch_size=32, epochs=15, schedule="linear")
    assert training.evaluate(model, datasets.load("digits", "test")).accuracy > 0.95


def test_wrong_requests_are_answered() -> None:
    with pytest.raises(UsageError, match="float32, bfloat16"):
        training.train(small(), digits(10), epochs=1, precision="half")
    data = digits(20)
    for arguments, words in (
        ({}, "either epochs or steps"),
        ({"epochs": 1, "steps": 1}, "either epochs or steps"),
        ({"epochs": -1}, "not negative"),
        ({"epochs": 1, "optimizer": "lbfgs"}, "sgd, adam, adamw"),
        ({"epochs": 1, "schedule": "linaer"}, "did you mean linear"),
        ({"epochs": 1, "batch_size": 0}, "batch_size=0"),
        ({"epochs": 1, "batch_size": 21, "drop_last": True}, "smaller batch_size"),
    ):
        with pytest.raises(UsageError, match=words):
            training.train(small(), data, **arguments)


def test_crops_and_flips_are_shifts_of_the_padded_image() -> None:
    images = torch.rand(64, 2, 5, 5)
    out = training.crop_and_flip(images, torch.Generator().manual_seed(0), padding=2)
    again = training.crop_and_flip(images, torch.Generator().manual_seed(0), padding=2)
    assert torch.equal(out, again)
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    chosen = set()
    for image, result in zip(padded, out, strict=True):
        windows = {(i, j): image[:, i : i + 5, j : j + 5] for i in range(5) for j in range(5)}
        found = [
            (i, j, flip)
            for (i, j), window in windows.items()
            for flip in (False, True)
            if torch.equal(result, window.flip(-1) if flip else window)
        ]
        assert len(found) == 1
        chosen.add(found[0])
    assert len(chosen) > 30  # of the fifty possible


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("digits_mlp", {"widths": (16,)}, {"lr": [0.05, 0.1, 0.2], "momentum": 0.9, "weight_decay": 1e-3}),
    ("fcnbn", {"widths": (12, 12)}, {"lr": [0.05, 0.1, 0.2], "schedule": "linear"}),
    ("digits_cnn", {"width": 4}, {"optimizer": "adam", "lr": [1e-3, 2e-3, 4e-3], "weight_decay": 1e-2}),
    ("digits_cnn", {"width": 4}, {"optimizer": "adamw", "lr": [1e-3, 2e-3, 4e-3], "weight_decay": 0.25}),
    ("digits_mlp", {"widths": (16,)}, {"lr": 0.1, "momentum": 0.9, "weight_decay": [0.0, 1e-3, 1e-1]}),
    ("digits_cnn", {"width": 4}, {"optimizer": "adamw", "lr": 2e-3, "weight_decay": [0.0, 0.25, 2.5]}),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("net", "args", "options"), CASES)
def test_networks_trained_together_equal_networks_trained_alone(
    net: str, args: dict[str, Any], options: dict[str, Any], device: str
) -> None:
    """After 200 steps with own initialisations, orders, label noise and rates; the last batch of an epoch is uneven."""
    data = datasets.fit_images(digits(150), nets.size_for(net, 8))
    noisy = [datasets.with_random_labels(data, share, seed=9) for share in (0.0, 0.3, 1.0)]
    together, alone = ([nets.build(net, seed=s, **args).double().to(device) for s in range(3)] for _ in range(2))
    start = flat(together[0])
    labels = torch.stack([each.y for each in noisy])
    records = training.train_ensemble(
        together, data, seeds=[5, 6, 7], labels=labels, steps=200, batch_size=40, **options
    )
    for place, (model, twin) in enumerate(zip(together, alone, strict=True)):
        own = {key: value[place] if isinstance(value, list) else value for key, value in options.items()}
        record = training.train(twin, noisy[place], seed=5 + place, steps=200, batch_size=40, **own)
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-6)
        assert [row.accuracy for row in records[place].epochs] == pytest.approx([r.accuracy for r in record.epochs])
        assert [row.loss for row in records[place].epochs] == pytest.approx([r.loss for r in record.epochs], rel=1e-6)
        assert records[place].settings == record.settings
        assert not model.training
    assert float((flat(together[0]) - start).abs().max()) > 0.01


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("net", ["digits_cnn", "fcnbn"])
def test_a_replayed_step_is_the_step_itself(net: str, device: str) -> None:
    """Alone and stacked, uneven last batches, BatchNorm statistics, dropout and a changing rate included."""
    data = datasets.fit_images(digits(150), nets.size_for(net, 8))
    options: dict[str, Any] = {"momentum": 0.9, "batch_size": 40, "epochs": 80, "schedule": "linear"}

    def model(seed: int) -> nn.Module:
        return nn.Sequential(nets.build(net, seed=seed), nn.Dropout(0.2)).double().to(device)

    ends = []
    for replay in (True, False):
        alone, stacked = model(0), [model(1), model(2)]
        training.train(alone, data, lr=0.1, seed=3, replay=replay, **options)
        training.train_ensemble(stacked, data, lr=[0.1, 0.05], seeds=[1, 2], replay=replay, **options)
        ends.append([value for each in (alone, *stacked) for value in each.state_dict().values()])
    for replayed, plain in zip(*ends, strict=True):
        torch.testing.assert_close(replayed, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_training_in_sixteen_bits_is_near_training_in_full(device: str) -> None:
    data = digits(150)
    full, low = (nets.build("digits_cnn", seed=0).to(device) for _ in range(2))
    options: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "batch_size": 50, "epochs": 10}
    training.train(full, data, **options)
    record = training.train(low, data, precision="bfloat16", **options)
    assert record.settings["precision"] == "bfloat16"
    assert training.evaluate(low, data).loss == pytest.approx(training.evaluate(full, data).loss, rel=0.05)
    assert not torch.equal(flat(low), flat(full))
    for parameter in low.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.is_contiguous()


def test_a_network_leaves_the_stack_when_it_reaches_its_target() -> None:
    data, target = digits(60), training.LossTarget(0.3)
    rates, decays = [0.5, 0.05, 1e200], [0.0, 1e-3, 0.0]
    together, alone = ([small(seed) for seed in range(3)] for _ in range(2))
    sizes: list[int] = []

    def watch(rows: dict[int, training.EpochRecord]) -> None:
        sizes.append(len(rows))
        assert all(row.epoch == len(sizes) - 1 for row in rows.values())

    records = training.train_ensemble(
        together, data, seeds=[0, 1, 2], lr=rates, momentum=0.5, weight_decay=decays, batch_size=15, epochs=40,
        stop=target, on_epoch=watch,
    )  # fmt: skip
    for place in range(3):
        record = training.train(
            alone[place], data, seed=place, lr=rates[place], momentum=0.5, weight_decay=decays[place], batch_size=15,
            epochs=40, stop=target,
        )  # fmt: skip
        assert records[place].stopped_by == record.stopped_by
        assert records[place].steps == record.steps
        if place < 2:
            torch.testing.assert_close(flat(together[place]), flat(alone[place]), rtol=0, atol=1e-9)
    assert records[0].steps < records[1].steps
    assert records[2].diverged
    assert sizes[0] == 3
    assert sorted(sizes, reverse=True) == sizes


def test_dropout_masks_differ_between_stacked_networks() -> None:
    models = [nn.Sequential(small(0), nn.Dropout(0.5)) for _ in range(2)]
    training.train_ensemble(models, digits(30), seeds=[3, 3], lr=0.1, batch_size=30, steps=1)
    assert not torch.equal(flat(models[0]), flat(models[1]))


def test_wrong_ensembles_are_answered() -> None:
    data = digits(20)
    with pytest.raises(UsageError, match="no networks"):
        training.train_ensemble([], data, seeds=[], epochs=1)
    with pytest.raises(UsageError, match="needs 2 seeds, and got 1"):
        training.train_ensemble([small(), small()], data, seeds=[0], epochs=1)
    with pytest.raises(UsageError, match="learning rates"):
        training.train_ensemble([small()], data, seeds=[0], lr=[0.1, 0.2], epochs=1)
    with pytest.raises(UsageError, match="weight decays"):
        training.train_ensemble([small()], data, seeds=[0], weight_decay=[0.1, 0.2], epochs=1)
    with pytest.raises(UsageError, match="labels a row"):
        training.train_ensemble([small()], data, seeds=[0], labels=torch.zeros(1, 3, dtype=torch.int64), epochs=1)
    with pytest.raises(UsageError, match="one architecture"):
        training.train_ensemble([small(), small(widths=(9,))], data, seeds=[0, 1], epochs=1)
    frozen = small()
    next(frozen.parameters()).requires_grad_(False)
    with pytest.raises(UsageError, match="require gradients"):
        training.train_ensemble([frozen], data, seeds=[0], epochs=1)
    with pytest.raises(UsageError, match="optimizer"):
        training.train_ensemble([small()], data, seeds=[0], epochs=1, optimizer="lbfgs")
    assert math.isnan(training.TrainingRecord({}).loss)
