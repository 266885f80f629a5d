"""Studies."""

STUDIES = ()
