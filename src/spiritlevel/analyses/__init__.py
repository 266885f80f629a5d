"""What is asked of measures: measuring, spectra, symmetries, audits, comparisons."""
