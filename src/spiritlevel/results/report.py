"""The report of one network: estimates by network, layer, neuron and sample, and what they were taken on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from spiritlevel.results import levels, records
from spiritlevel.results.base import ResultBase
from spiritlevel.results.header import Headed, Header
from spiritlevel.results.saving import undamaged
from spiritlevel.results.wording import number_of, subject_words
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError, near_names
from spiritlevel.values.estimate import Estimate

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class Report(Headed, ResultBase, Mapping[str, Estimate]):
    """A mapping from measure to estimate, with the layers, neurons and samples behind it.

    Printed, it is the table a terminal shows.

    Attributes
    ----------
    estimates : dict of str to Estimate
        The network's values by measure; ``report["hessian_trace"]`` is one of them.
    per_layer : dict
        Estimates by quantity and layer.
    per_neuron : dict
        Lists of numbers, one a neuron, by quantity and layer.
    per_sample : dict of str to Tensor
        Numbers of the samples, by name.
    header : Header
        What was measured: model, weights, data, split, samples of how many, loss, accuracy, gradient norm and its
        noise, seed, fingerprint of the data, mode, dtype, device, versions, wall time, passes over the data, notes.
    settings : dict
        All settings of each measure.
    titles : dict of str to str
        Measures and layer quantities in words.
    sample_indices : Tensor
        Which sample of the data, from 0, each entry of ``per_sample`` belongs to; None where nobody knows, as in files
        of spiritlevel 0.2.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> report = sl.measure(problem, ["hessian_trace", "weight_norm"])
    >>> list(report), report["hessian_trace"].how
    (['hessian_trace', 'weight_norm'], 'exact')
    >>> traces = report.per_layer["hessian_trace"]
    >>> {layer: round(trace.value, 2) for layer, trace in traces.items()}
    {'1': 0.36, '3': 0.36, '5': 1.23}
    >>> report.save("report.json")
    >>> sl.Report.load("report.json")
    <Report of Sequential, 100 samples: 2 measures>
    """

    kind: ClassVar[str] = "report"
    levels = levels.REPORT
    estimates: dict[str, Estimate]
    per_layer: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    per_neuron: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    per_sample: dict[str, Tensor] = field(default_factory=dict)
    header: Header = field(default_factory=Header)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    sample_indices: Tensor | None = None

    def __getitem__(self, name: str) -> Estimate:
        try:
            return self.estimates[name]
        except KeyError:
            raise KeyError(f"the report has no measure {name!r}{near_names(name, self.estimates)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def loss(self) -> float:
        """The mean loss over the data."""
        return math.nan if self.header.loss is None else float(self.header.loss)

    @property
    def accuracy(self) -> float | None:
        """The share of samples classified right, None where that has no meaning."""
        return self.header.accuracy

    @property
    def gradient_norm(self) -> float | None:
        """The length of the mean gradient: small against its noise at a minimum."""
        return self.header.gradient_norm

    @property
    def fingerprint(self) -> str:
        """A hash of the data: reports with the same one were measured on the same samples."""
        return self.header.fingerprint or ""

    @property
    def ok(self) -> bool:
        """Whether every measure may be used without a caveat."""
        return all(estimate.ok for estimate in self.estimates.values())

    def title(self, name: str) -> str:
        """Return a measure or layer quantity in words.

        Parameters
        ----------
        name : str
            The measure or quantity.

        Returns
        -------
        str
            Its title; its name with spaces where nobody gave one.
        """
        return self.titles.get(name) or name.replace("_", " ")

    # --- for the eye -----------------------------------------------------------------------------------------------

    def table(self, layers: bool = False, notes: bool = True) -> RenderableType:
        """Return the report for rich's ``print``; ``layers`` adds a table of every layer's values.

        Parameters
        ----------
        layers : bool
            Whether to show every layer.
        notes : bool
            Whether to show the notes below the table.

        Returns
        -------
        rich renderable
            What a terminal shows.
        """
        from spiritlevel.results import terminal

        return terminal.report_table(self, layers=layers, notes=notes)

    @property
    def in_short(self) -> str:
        """The network, the data and how many measures."""
        return f"{subject_words(self)}: {number_of(len(self), 'measure')}"

    # --- for other programs ----------------------------------------------------------------------------------------

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Return finite numbers for W&B, MLflow or TensorBoard: ``name``, ``name_stderr`` and ``quantity/layer``.

        Parameters
        ----------
        prefix : str
            What each name begins with.

        Returns
        -------
        dict of str to float
            The numbers by name; loss, accuracy and gradient norm are among them.
        """
        found: dict[str, float | None] = {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "gradient_norm": self.gradient_norm,
        }
        for name, estimate in self.estimates.items():
            found[name] = estimate.value
            if estimate.stderr:
                found[f"{name}_stderr"] = estimate.stderr
        for quantity, layers in self.per_layer.items():
            found |= {f"{quantity}/{layer}": estimate.value for layer, estimate in layers.items()}
        return {prefix + name: float(v) for name, v in found.items() if v is not None and math.isfinite(v)}

    def sample_index(self) -> tuple[str, Tensor]:
        """Return what the entries of ``per_sample`` are numbered by, and the numbers.

        Returns
        -------
        pair of str and Tensor
            "sample", the index in the data; or, where nobody knows it, "measured", the place among the measured.
        """
        if self.sample_indices is not None:
            return "sample", self.sample_indices
        return "measured", torch.arange(max(map(len, self.per_sample.values()), default=0))

    def record(self) -> dict[str, Any]:
        return {
            "schema_version": records.SCHEMA_VERSION,
            "header": self.header.record(),
            "settings": records.as_json(self.settings),
            "titles": dict(self.titles),
            "measures": {name: records.estimate_record(e) for name, e in self.estimates.items()},
            "layers": {
                quantity: {layer: records.estimate_record(e) for layer, e in layers.items()}
                for quantity, layers in self.per_layer.items()
            },
            "neurons": records.as_json(self.per_neuron),
            "samples": records.as_json(self.per_sample),
            "sample_indices": records.as_json(self.sample_indices),
        }

    @classmethod
    @documented_like(ResultBase.from_record)
    def from_record(cls, record: Any, source: str = "the record") -> Self:
        """Return the report of a record; files of reports name no kind, and may hold several.

        Returns
        -------
        Report
            The report.

        Raises
        ------
        UsageError
            The record holds several reports.
        SpiritlevelError
            The record does not follow the layout.
        """
        records.check_record(record, source)
        if "reports" in record:
            raise UsageError(f"{source} holds several reports; read them with load_reports or collect")
        with undamaged("report", source):
            return cls._read(record, source)

    @classmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        samples = {name: torch.tensor(_floats(each), dtype=torch.float64) for name, each in record["samples"].items()}
        indices = record.get("sample_indices")
        if indices is not None and any(len(values) != len(indices) for values in samples.values()):
            raise ValueError(f"samples must have {len(indices)} entries each, as many as sample_indices")
        return cls(
            estimates={name: records.read_estimate(entry) for name, entry in record["measures"].items()},
            per_layer={
                quantity: {layer: records.read_estimate(entry) for layer, entry in layers.items()}
                for quantity, layers in record["layers"].items()
            },
            per_neuron={q: {la: _floats(v) for la, v in layers.items()} for q, layers in record["neurons"].items()},
            per_sample=samples,
            sample_indices=None if indices is None else torch.tensor(indices, dtype=torch.int64),
            header=Header.of(record["header"]),
            settings=record["settings"],
            titles=record.get("titles", {}),
        )


def _floats(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
