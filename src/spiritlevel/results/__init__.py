"""What a measurement gives back: estimates with their errors, as a table, as strict JSON, as a data frame."""

from spiritlevel.results.collecting import collect, load_reports
from spiritlevel.results.records import SCHEMA_VERSION, schema
from spiritlevel.results.report import Report

__all__ = ["SCHEMA_VERSION", "Report", "collect", "load_reports", "schema"]
