"""The page people open: one self-contained HTML file from reports, comparisons, audits, spectra and studies."""

from spiritlevel.page.builder import figure, figures, html, save_figures, write
from spiritlevel.page.content import PageContent, of_audit, of_comparison, of_reports, of_spectrum, of_studies
from spiritlevel.page.loading import together

__all__ = [
    "PageContent",
    "figure",
    "figures",
    "html",
    "of_audit",
    "of_comparison",
    "of_reports",
    "of_spectrum",
    "of_studies",
    "save_figures",
    "together",
    "write",
]
