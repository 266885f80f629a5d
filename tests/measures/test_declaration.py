"""What is said of a measure or a symmetry stands in its declaration, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import spiritlevel as sl
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.costs import COST_WORDS, Cost, Extent
from spiritlevel.measures.declaration import declare, in_sentence
from spiritlevel.measures.registry import MEASURES, words_of
from spiritlevel.values.errors import UsageError
from spiritlevel.values.statistics import STATISTICS
from spiritlevel.values.symmetries import RESCALINGS, SYMMETRIES, SYMMETRY_WORDS
from tests.helpers import opened
from tests.networks import PIECEWISE_LINEAR

SOURCE = Path(sl.__file__).parent


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("PAC-Bayes bound on the error", "PAC-Bayes bound on the error"),
        ("Hessian trace", "Hessian trace"),
        ("Gauss–Newton trace", "Gauss–Newton trace"),
        ("Frobenius norm of the Hessian", "Frobenius norm of the Hessian"),
        ("Normalised sharpness", "normalised sharpness"),
        ("Softmax-margin bound", "softmax-margin bound"),
        ("κτ, last layer", "κτ, last layer"),
        ("A", "A"),
        ("", ""),
    ],
)
def test_a_title_inside_a_sentence_keeps_the_capitals_of_names(title: str, words: str) -> None:
    assert in_sentence(title) == words


def test_every_measure_has_words_for_sentences() -> None:
    for name, own in MEASURES.items():
        assert own.words.lower() in own.title.lower(), name
        assert ":" not in own.words, f"{name}: a colon would split the sentence"
    assert MEASURES["pac_bayes_terms"].words.startswith("PAC-Bayes")
    assert MEASURES["keskar_sharpness"].words == "Keskar sharpness"
    assert words_of("pac_bayes_terms", "Called otherwise in an old report") == "called otherwise in an old report"


@pytest.fixture(scope="module")
def measured() -> tuple[OpenProblem, sl.Report]:
    problem = opened(*PIECEWISE_LINEAR["mlp"].trained())
    names = [name for name, own in MEASURES.items() if own.per_sample or own.layer_quantities]
    return problem, sl.measure(problem, names)


def test_the_declared_statistic_of_the_samples_is_the_value(measured: tuple[OpenProblem, sl.Report]) -> None:
    problem, report = measured
    declared = {name for name, own in MEASURES.items() if own.per_sample}
    assert set(report.per_sample) == declared
    weights = problem.survey.weights.double().numpy()[None]
    for name in declared:
        statistic = report.settings[name].get("statistic", MEASURES[name].statistic)
        found = STATISTICS[statistic](report.per_sample[name].double().numpy()[None], weights)[0]
        assert found == pytest.approx(report[name].value, rel=1e-9), name
        assert torch.equal(sl.per_sample(problem, name)[name], report.per_sample[name]), name


def test_every_quantity_of_a_layer_has_a_declared_title(measured: tuple[OpenProblem, sl.Report]) -> None:
    _, report = measured
    declared = {quantity for own in MEASURES.values() for quantity in own.layer_quantities}
    assert set(report.per_layer) == declared
    for quantity in declared:
        assert quantity in report.titles, quantity
    for name, own in MEASURES.items():
        assert set(own.layer_titles) <= set(own.layer_quantities), name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"statistic": "mode"}, "measure mine: statistic must be one of mean, sum, median"),
        ({"surrogate": "kappa"}, "measure mine: surrogate must be one of"),
    ],
)
def test_an_unknown_word_in_a_declaration_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        declare(title="Mine", formula="x", citation="me 2026", name="mine", **given)(lambda problem: 0.0)  # type: ignore[arg-type]


def test_cost_words_stand_for_numbers() -> None:
    extent = Extent(columns=9, weights=3, settings={"probes": 16})
    assert {words: about(extent) for words, about in COST_WORDS.items()} == {
        "outputs - 1": 9,
        "layers × Lanczos steps": 60,
        "the top pairs and probes": 36,
        "up to 2 × probes": 32,
        "until the residual is met": 20,
        "until the residuals are met": 20,
    }
    assert Cost(forward=1, column="outputs - 1").sweeps(extent) == {"forward": 1.0, "column": 9.0}
    assert Cost(gradient="probes", product="as many as it takes").sweeps(extent) == {"gradient": 16.0, "product": 20.0}


def test_symmetries_are_worded_in_one_table() -> None:
    assert RESCALINGS == ("layer_rescaling", "neuron_rescaling")
    assert list(SYMMETRY_WORDS) == ["layer_rescaling", "neuron_rescaling", "permutation", "output_scaling"]
    tables = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(rf'"({"|".join(SYMMETRIES)})": "', path.read_text(encoding="utf-8"))
    ]
    assert tables == []
    for each in SYMMETRIES.values():
        assert each.words
        assert each.listed_as


def test_what_the_page_says_of_measures_is_what_they_declare() -> None:
    from spiritlevel.page.sections import layers, margins, samples

    for quantity in layers.INVARIANT:
        owners = [own for own in MEASURES.values() if quantity in own.layer_quantities]
        assert owners, quantity
        assert all(own.invariances[name] for own in owners for name in RESCALINGS), quantity
    assert not any(MEASURES[layers.TRACE].invariances[name] for name in RESCALINGS)
    for name in (samples.Y, *samples.AGAINST, *margins.QUANTITIES):
        assert MEASURES[name].per_sample, name
