"""The answer in two sentences, which never goes beyond the numbers."""

from __future__ import annotations

import pytest

from spiritlevel import page
from spiritlevel.page import builder
from spiritlevel.page.content import PageContent
from spiritlevel.results.wording import UNTRAINED
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import not_applicable
from tests.page.contents import compared
from tests.page.material import made_audit, made_report, made_spectrum


def answer(content: PageContent) -> tuple[str, str]:
    return builder.page_of(content).first.answer


def test_one_checkpoint_is_neither_flat_nor_sharp() -> None:
    strong, rest = answer(page.of_reports(made_report()))
    assert strong == (
        "3 of 6 measures cannot be changed by rescaling layers or neurons and 3 can; one network alone is neither flat "
        "nor sharp."
    )
    assert rest == (
        "Layer fc1 holds 70% of the Hessian trace, which rescaling could move to another, and 33% of normalised "
        "sharpness, which it could not."
    )


def test_an_untrained_network_is_called_that_before_anything_else() -> None:
    strong, _ = answer(page.of_reports(made_report(trained=False, at_minimum=False)))
    assert strong == UNTRAINED


def test_a_network_on_a_slope_is_not_at_a_minimum() -> None:
    strong, _ = answer(page.of_reports(made_report(at_minimum=False, gradient_norm=0.5, gradient_noise=0.01)))
    assert strong.startswith("Not at a minimum: the gradient norm 0.50 is not small against its noise 0.010")


def test_a_gradient_within_its_noise_is_not_told_from_it() -> None:
    few = {"samples": 150, "gradient_norm": 0.5, "gradient_noise": 0.4}
    for at_minimum in (None, True):  # earlier versions wrote true
        content = page.of_reports(made_report(at_minimum=at_minimum, **few))
        assert answer(content)[1].endswith(
            "Whether this is a minimum cannot be told: the gradient (gradient norm 0.50, its noise 0.40) is not "
            "distinguishable from noise at 150 samples."
        )
        shown = builder.page_of(content)
        assert dict(shown.first.facts)["‖gradient‖"] == "0.50 (not distinguishable from noise at 150 samples)"
        rows = [[cell.text for cell in row.cells] for row in shown.sections[-1].parts[-1].rows]
        assert ["at minimum", "not distinguishable from noise at 150 samples"] in rows


def test_without_layers_the_values_are_said() -> None:
    _, rest = answer(page.of_reports(made_report(layers=False)))
    assert rest == "Here Hessian trace is 10.000 and top eigenvalue of the Hessian is 2.0000."


def test_nothing_measured_is_said() -> None:
    report = made_report(layers=False)
    for name in report:
        report.estimates[name] = not_applicable("no classes")
    strong, rest = answer(page.of_reports(report))
    assert strong == "None of the measures asked for could be computed; the reasons are below."
    assert rest == ""


def test_reports_of_different_data_conclude_nothing() -> None:
    reports = [made_report(weights="a.pt"), made_report(2.0, weights="b.pt", fingerprint="cd34")]
    strong, rest = answer(page.of_reports(reports))
    assert strong.startswith("These 2 reports were not measured on the same samples")
    assert rest == "They are shown side by side and nothing is concluded."


def test_epochs_go_from_the_first_to_the_last() -> None:
    reports = [made_report(1 / e, weights=f"epoch-{e}.pt", loss=1 / e, at_minimum=e > 5) for e in (10, 1, 5)]
    content = PageContent({str(report.header.weights): report for report in reports})
    strong, rest = answer(content)
    assert strong == (
        "From epoch 1 to 10, Hessian trace went from 10.000 to 1.0000 and top eigenvalue of the Hessian went from "
        "2.0000 to 0.20000."
    )
    assert rest == "The loss went from 1.00 to 0.100; 2 of the 3 networks are not at a minimum."
    # Where they are held against each other as well, that follows the answer.
    assert answer(page.of_reports(reports))[1].endswith(strong)


def test_reports_side_by_side_are_not_ranked() -> None:
    strong, rest = answer(page.of_reports([made_report(weights="a.pt"), made_report(2.0, weights="b.pt", loss=0.02)]))
    assert strong == (
        "In a.pt and b.pt: Hessian trace 10.000 / 20.000, top eigenvalue of the Hessian 2.0000 / 4.0000; which is "
        "flatter is for a comparison to say."
    )
    assert rest == "Their losses are 0.0100 and 0.0200."


def test_all_measures_agree() -> None:
    strong, _ = answer(compared(made_report(), made_report(2.0)))
    assert strong.startswith("a.pt is flatter than b.pt by all 6 measures; 2 of the 6 are invariant to every rescaling")
    assert "as declared" in strong


def test_no_measure_decides() -> None:
    strong, _ = answer(compared(made_report(error=9.0), made_report(1.01, error=9.0)))
    assert strong == "No measure tells a.pt and b.pt apart: all 6 differences are within their errors."


def test_a_comparison_with_an_untrained_network_says_so() -> None:
    _, rest = answer(compared(made_report(), made_report(2.0, trained=False)))
    assert rest.startswith("b.pt is a network as initialised")


def test_a_comparison_off_a_minimum_says_so() -> None:
    first = builder.page_of(compared(made_report(at_minimum=False, gradient_norm=0.5), made_report(2.0))).first
    assert any("a.pt is not at a minimum (gradient norm 0.50" in line for line in [*first.answer, *first.notes])
    assert any("not at a minimum" in value for _, value in first.facts)


def test_different_data_is_never_compared() -> None:
    with pytest.raises(UsageError, match="different data"):
        compared(made_report(), made_report(2.0, fingerprint="cd34"))


def test_an_audit_counts_what_was_measured() -> None:
    found = made_audit({"hessian_trace": "changes", "rho_sum": "invariant", "kappa_tau_sum": "undecided"})
    strong, rest = answer(page.of_audit(found))
    assert strong == (
        "1 of 3 measures kept its value under every rescaling found in this network, 1 changed and 1 is undecided, "
        "while every prediction stayed the same."
    )
    assert rest == "The largest change shown is that of Hessian trace, multiplied by 12 when neurons were rescaled."


def test_an_audit_puts_a_contradiction_first() -> None:
    content = page.of_audit(made_audit({"rho_sum": "changes"}, declared=True))
    assert "contradicted: rho_sum is declared invariant" in answer(content)[1]
    assert builder.page_of(content).first.notes[0].startswith("Contradiction: rho_sum")


def test_an_audit_that_found_nothing_to_try_says_so() -> None:
    strong, _ = answer(page.of_audit(made_audit({"rho_sum": "not found"})))
    assert strong.startswith("No rescaling of layers or neurons was found")


@pytest.mark.parametrize(
    ("rate", "words"),
    [(0.1, "below the line 2/lr = 20.0"), (2.0, "above the line 2/lr = 1.00"), (1.0, "within its error of the line")],
)
def test_a_spectrum_is_held_against_the_stability_line(rate: float, words: str) -> None:
    strong, rest = answer(page.of_spectrum(made_spectrum(), rate))
    assert strong == "The eigenvalues of the Hessian lie between -0.100 and 2.00."
    assert words in rest


def test_a_learning_rate_must_be_positive() -> None:
    with pytest.raises(UsageError, match="learning rate must be a positive number"):
        page.of_spectrum(made_spectrum(), -1.0)
