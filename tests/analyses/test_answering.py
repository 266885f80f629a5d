"""Which run, which epoch: the answer about many networks on constructed cases, ties and all."""

from __future__ import annotations

from dataclasses import replace

import spiritlevel as sl
from spiritlevel.results import Report
from spiritlevel.results.header import Header
from spiritlevel.values.estimate import Estimate
from tests.analyses.made_reports import made, made_runs


def answers(reports: dict[str, Report]) -> list[str]:
    return sl.compare(reports).answer


def with_header(reports: dict[str, Report], label: str, **facts: object) -> None:
    reports[label] = replace(reports[label], header=reports[label].header.with_facts(facts))


def test_the_flattest_of_runs_is_named_with_its_epoch() -> None:
    first, ends = answers(made_runs())
    # The last three epochs of the last run are within the first measure's errors.
    assert first == (
        "kind-1/seed-1 at epoch 12 (loss 0.0333) is the flattest by 1 of 2 measures and not told apart from the "
        "flattest by 1 more."
    )
    assert ends == "At the end of the runs, the same holds."
    # Where the runs begin flat and end sharp, their ends are another answer.
    reports = made_runs()
    for label in reports:
        place = float(label.rpartition("-")[2].removesuffix(".pt"))
        with_header(reports, label, run=label.rpartition("/")[0], epoch=13 - place)
    assert answers(reports)[1].startswith(
        "At the end of the runs, kind-1/seed-1 at epoch 12 (loss 0.400) is the flattest by 1 of 2 measures"
    )


def test_networks_that_are_not_at_a_minimum_are_left_out_and_counted() -> None:
    reports = made_runs(2, 3)
    with_header(reports, "kind-0/seed-1/epoch-3.pt", at_minimum=False)
    (first,) = answers(reports)  # one run's end is left, which is the flattest of itself
    assert first.startswith(
        "Leaving out the 1 of 6 networks that is not at a minimum, kind-0/seed-1 at epoch 2 (loss 0.500) "
    )
    three = made_runs(3, 3)
    with_header(three, "kind-0/seed-2/epoch-3.pt", at_minimum=False)
    assert answers(three)[1].startswith("At the end of the 2 of 3 runs that are left in, kind-0/seed-1 at epoch 3 ")
    for label in reports:
        with_header(reports, label, at_minimum=False)
    first, ends = answers(reports)
    assert first.startswith("Though none of these networks is at a minimum, kind-0/seed-1 at epoch 3 (loss 0.333)")
    assert ends.startswith("At the end of the runs, ")


def test_ties_are_said_as_ties() -> None:
    close = {label: Estimate(1 + place / 100, stderr=0.5, how="estimated") for place, label in enumerate("abcdef")}
    reports = {label: made(label, {"hessian_trace": e, "rho_sum": e}) for label, e in close.items()}
    assert answers(reports) == [
        "a (loss 0.100) is not told apart from the flattest by all 2 measures; so are 5 others by as many."
    ]
    split = {label: made(label, {"hessian_trace": Estimate(a), "rho_sum": Estimate(b)}) for label, a, b in
             (("a", 1.0, 3.0), ("b", 2.0, 2.0), ("c", 3.0, 1.0))}  # fmt: skip
    assert answers(split) == ["a (loss 0.100) is the flattest by 1 of 2 measures; c by as many."]


def test_where_test_accuracy_is_highest_is_said_with_its_place() -> None:
    reports = made_runs(2, 2)
    assert not any("Test accuracy" in line for line in answers(reports))
    for label, accuracy in zip(reports, (0.9, 0.8, 0.9, 0.7)):
        with_header(reports, label, test_accuracy=accuracy)
    assert answers(reports)[-1] == (
        "Test accuracy is highest (90.00%) for kind-0/seed-0 at epoch 1 and 1 other; the first of them is in place 4 "
        "of 4 by Hessian trace."
    )


def test_two_networks_have_no_answer_beyond_their_comparison() -> None:
    both = dict(list(made_runs(1, 2).items()))
    assert answers(both) == []
    assert isinstance(next(iter(both.values())).header, Header)


def test_networks_that_have_learnt_nothing_are_not_called_the_flattest() -> None:
    """Of a run from its beginning the first epochs are flat, for nothing was learnt there."""
    data = sl.datasets.load("digits").subset(range(200))
    model, reports = sl.nets.build("digits_mlp", seed=0), {}
    for epoch in range(5):
        reports[f"epoch {epoch}"] = sl.measure(sl.Problem(model, data), ["hessian_trace", "kappa_tau_sum"])
        sl.training.train(model, data, steps=1 if epoch < 2 else 400, batch_size=20, lr=0.1)
    assert [report.header.guessing for report in reports.values()][:3] == [True, True, True]
    found = sl.compare(reports)
    first = found.answer[0]
    assert "hardly better than guessing" in first
    assert not any(f"epoch {epoch} (" in first for epoch in range(3))
    assert [report.header.guessing for report in (sl.Report.from_record(r.record()) for r in reports.values())] == [
        report.header.guessing for report in reports.values()
    ]
