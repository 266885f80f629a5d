"""Models and data as people have them: encoder-decoders, pairs, tokens by the thousand, physics, in-batch contrast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import SpiritlevelError


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def randint(high: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def seeded_network(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def assert_trace_is_right(problem: Problem, seeds: int = 3) -> None:
    """The trace within its error, over a few seeds, and the top eigenvalue and products with it."""
    dense = Dense(problem)
    truth = float(dense.hessian.trace())
    for seed in range(seeds):
        found = sl.measure(problem, ["hessian_trace"], seed=seed)["hessian_trace"]
        assert abs(found.value - truth) <= 4 * found.stderr + 1e-9 * abs(truth), (seed, found, truth)
        assert found.stderr < 0.3 * abs(truth) + 0.1
    vectors = randn(problem.size, 2, seed=5)
    torch.testing.assert_close(problem.hessian @ vectors, dense.hessian @ vectors, rtol=1e-7, atol=1e-9)


class EncoderDecoder(nn.Module):
    """Called with keywords, padding and all, as Hugging Face's are; it returns logits among others."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> dict[str, Tensor]:
        mask = attention_mask[..., None].to(self.out.weight.dtype)
        hidden = (torch.tanh(self.encoder(self.embedding(input_ids))) * mask).sum(1) / mask.sum(1)
        states = torch.tanh(self.decoder(self.embedding(decoder_input_ids)) + hidden[:, None])
        return {"logits": self.out(states), "encoder_last_hidden_state": hidden}


def translation() -> dict[str, Tensor]:
    labels = randint(7, 10, 4)
    mask = torch.ones(10, 5, dtype=torch.int64)
    mask[:3, 3:] = 0
    shifted = F.pad(labels[:, :-1], (1, 0))
    labels[0, 2:] = -100
    return {
        "input_ids": randint(7, 10, 5, seed=2),
        "attention_mask": mask,
        "decoder_input_ids": shifted,
        "labels": labels,
    }


@pytest.mark.parametrize("form", ["whole", "batches"])
def test_encoder_decoders_are_measured(form: str) -> None:
    data = translation()
    cut = [{key: value[i : i + 4] for key, value in data.items()} for i in range(0, 10, 4)]
    assert_trace_is_right(Problem(seeded_network(EncoderDecoder), data if form == "whole" else cut, "same_token"))


class Shifting(EncoderDecoder):
    """Makes its decoder's inputs from the labels, as those of transformers do."""

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return F.pad(labels.clamp(min=0)[:, :-1], (1, 0))


def test_what_a_decoder_is_given_is_made_from_the_labels() -> None:
    data = translation()
    shifted = Shifting().prepare_decoder_input_ids_from_labels(data["labels"])
    without = {name: tensor for name, tensor in data.items() if name != "decoder_input_ids"}
    problem = Problem(seeded_network(Shifting), without, "same_token")
    assert_trace_is_right(problem)
    given = Problem(seeded_network(Shifting), {**without, "decoder_input_ids": shifted}, "same_token")
    assert sl.measure(problem, "cheap").loss == sl.measure(given, "cheap").loss
    # What is given stands: these are other inputs.
    other = Problem(seeded_network(Shifting), {**without, "decoder_input_ids": shifted.flip(1)}, "same_token")
    assert sl.measure(other, "cheap").loss != sl.measure(given, "cheap").loss


def test_a_t5_is_measured_on_what_it_is_trained_on() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 9, "d_model": 4, "d_ff": 4, "num_layers": 1, "num_heads": 1, "d_kv": 4}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    labels = randint(9, 6, 3)
    labels[0, 2] = -100
    data = {"input_ids": randint(9, 6, 4, seed=3), "labels": labels}
    report = sl.measure(Problem(model, data, "model"), "weight_norm")
    assert report.loss == pytest.approx(float(model(**data).loss.detach()), rel=1e-5)


class Physics(nn.Module):
    """A function and the residual of its differential equation, which takes gradients inside forward."""

    def __init__(self, prepares: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
        self.prepares = prepares

    def forward(self, x: Tensor) -> Tensor:
        if self.prepares:
            with torch.enable_grad():
                return self.equation(x.detach().requires_grad_())
        x.requires_grad_()
        return self.equation(x)

    def equation(self, x: Tensor) -> Tensor:
        u = self.net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return torch.cat([u, bend + u], 1)


def equation_data() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    return x, torch.cat([torch.sin(x), torch.zeros_like(x)], 1)


def slope_outside(model: nn.Module, batch: Any) -> Tensor:
    x = batch[0].detach().requires_grad_()
    u = model(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    return torch.cat([u, slope], 1)


@pytest.mark.parametrize("prepares", [True, False])
def test_models_that_differentiate_inside_forward_are_measured(prepares: bool) -> None:
    data = equation_data()
    problem = Problem(seeded_network(lambda: Physics(prepares)), data, "mean_squared_error")
    assert_trace_is_right(problem)
    assert not data[0].requires_grad
    assert not open_problem(problem).outputs(data).isnan().any()


def test_a_forward_that_differentiates_is_measured() -> None:
    model = seeded_network(lambda: nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)))
    assert_trace_is_right(Problem(model, equation_data(), "mean_squared_error", forward=slope_outside))


def test_every_default_measure_takes_a_model_that_differentiates() -> None:
    problem = Problem(seeded_network(Physics), equation_data(), "mean_squared_error")
    report = sl.measure(problem, tolerance=0.3)
    assert {name for name, estimate in report.items() if estimate.status == "not_finite"} == set()
    assert report["hessian_trace"].value != 0
    assert sl.per_sample(problem, ["loss"])["loss"].shape == (12,)


def test_outputs_without_a_graph_stay_without_one() -> None:
    problem = open_problem(Problem(seeded_network(Physics), equation_data(), "mean_squared_error"))
    with torch.no_grad():
        assert not problem.outputs(equation_data()).requires_grad
    assert problem.outputs(equation_data()).requires_grad


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed(a), self.embed(b)


def stacked(model: nn.Module, batch: Any) -> Tensor:
    return torch.stack(model(*batch[0]), 1)


def test_pairs_of_nested_inputs_are_measured() -> None:
    data = (randn(12, 4), randn(12, 4, seed=1)), randint(2, 12)
    assert_trace_is_right(Problem(seeded_network(Siamese), data, "contrastive_pairs", forward=stacked))
    with pytest.raises(SpiritlevelError, match=r"torch.stack\(model\(...\), 1\)"):
        sl.measure(Problem(seeded_network(Siamese), data, "contrastive_pairs"), ["hessian_trace"])


def test_gaussian_likelihoods_are_measured() -> None:
    model = seeded_network(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    inputs = randn(20, 3)
    assert_trace_is_right(Problem(model, (inputs, inputs[:, 0].sin()), "gaussian_nll"))


class LanguageModel(nn.Module):
    def __init__(self, tokens: int = 70) -> None:
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(tokens, 3), nn.Linear(3, 4), nn.Linear(4, tokens)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.embedding(input_ids).cumsum(1))))


def written_by_hand(outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    losses = F.cross_entropy(outputs[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none")
    return losses.view(len(outputs), -1), batch["attention_mask"][:, 1:]


def focal_by_hand(outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    losses, weights = written_by_hand(outputs, batch)
    return (1 - torch.exp(-losses)) * losses, weights


@pytest.mark.parametrize("loss", ["next_token", written_by_hand, focal_by_hand])
def test_token_losses_of_many_outputs_are_measured(loss: Any) -> None:
    """560 outputs a sample, padded: a second derivative that is never formed."""
    ids = randint(70, 12, 8)
    mask = torch.ones_like(ids)
    mask[2, 5:] = 0
    data = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}
    problem = Problem(seeded_network(LanguageModel), data, loss)
    assert_trace_is_right(problem, seeds=2)
    named = Problem(seeded_network(LanguageModel), data, "next_token")
    if loss is written_by_hand:
        by_hand, by_name = (sl.measure(each, ["ggn_trace"]) for each in (problem, named))
        assert by_hand["ggn_trace"].value == pytest.approx(by_name["ggn_trace"].value, rel=1e-9)
        assert by_hand.loss == pytest.approx(by_name.loss, rel=1e-12)


def in_batch_contrast(outputs: Tensor, batch: Any) -> Tensor:
    embeddings = F.normalize(outputs, dim=1)
    return F.cross_entropy(embeddings @ embeddings.T, torch.arange(len(outputs)), reduction="none")


class Shuffled:
    """Batches in another order in every sweep."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Any:
        order = torch.randperm(30, generator=self.generator)
        return iter([(randn(30, 3)[part], torch.zeros(10)) for part in order.split(10)])


def embedding_network() -> nn.Module:
    return seeded_network(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))


CONTRASTED: dict[str, Callable[[], Any]] = {
    "memory": lambda: (randn(30, 3), torch.zeros(30)),
    "loader": lambda: DataLoader(TensorDataset(randn(30, 3), torch.zeros(30)), batch_size=8, shuffle=True),
    "batches": lambda: [(randn(15, 3), torch.zeros(15)), (randn(15, 3, seed=1), torch.zeros(15))],
    "shuffled": Shuffled,
}


@pytest.mark.parametrize("measure", ["hessian_trace", "hessian_top_eigenvalue"])
@pytest.mark.parametrize("form", CONTRASTED)
def test_losses_that_couple_samples_are_not_taken_for_shuffled_data(form: str, measure: str) -> None:
    problem = Problem(embedding_network(), CONTRASTED[form](), in_batch_contrast)
    with pytest.raises(SpiritlevelError, match="in_batch_contrast couples the samples of a batch") as coupled:
        sl.measure(problem, [measure])
    assert "shuffled" not in str(coupled.value)


def test_shuffled_data_is_not_taken_for_a_loss_that_couples() -> None:
    problem = Problem(embedding_network(), Shuffled(), lambda f, batch: f.square().sum(1))
    with pytest.raises(SpiritlevelError, match="the data is shuffled") as shuffled:
        sl.measure(problem, ["hessian_trace"])
    assert "couples" not in str(shuffled.value)


def test_in_training_mode_a_coupling_loss_is_that_of_its_batches() -> None:
    problem = Problem(embedding_network(), CONTRASTED["batches"](), in_batch_contrast, mode="train")
    assert_trace_is_right(problem)
