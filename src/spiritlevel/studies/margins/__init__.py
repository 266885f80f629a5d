"""Studies of Lengyel et al. 2021: flat minima and large margins."""

from spiritlevel.studies.margins import affine

STUDIES = (affine.FIG1, affine.FIG2)
