"""Studies of Tsuzuku et al. 2019: normalised flat minima."""

from spiritlevel.lab.studies.nfm import example, invariance, random_labels

STUDIES = (*random_labels.STUDIES, invariance.STUDY, example.STUDY)
