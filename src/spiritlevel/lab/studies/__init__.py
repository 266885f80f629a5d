"""The studies of the papers this tool comes from: run again, claim by claim, with a verdict on each."""

from spiritlevel.lab.studies.claims import Claim, Judgement, Within, judge_claim
from spiritlevel.lab.studies.quantities import Quantity
from spiritlevel.lab.studies.records import Record, load_record, make_record, save_record
from spiritlevel.lab.studies.registry import chosen_studies, studies, study_named
from spiritlevel.lab.studies.running import run_study
from spiritlevel.lab.studies.store import RunStore
from spiritlevel.lab.studies.study import SIZES, Outcome, Place, Study, Table

__all__ = [
    "SIZES",
    "Claim",
    "Judgement",
    "Outcome",
    "Place",
    "Quantity",
    "Record",
    "RunStore",
    "Study",
    "Table",
    "Within",
    "chosen_studies",
    "judge_claim",
    "load_record",
    "make_record",
    "run_study",
    "save_record",
    "studies",
    "study_named",
]
