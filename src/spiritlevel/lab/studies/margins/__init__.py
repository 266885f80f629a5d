"""Studies of Lengyel et al. 2021: flat minima and large margins."""

from spiritlevel.lab.studies.margins import affine, appendix_cifar, batch, cost, outliers, over_training, scaling

STUDIES = (
    affine.FIG1,
    affine.FIG2,
    *over_training.STUDIES,
    *appendix_cifar.STUDIES,
    batch.STUDY,
    scaling.STUDY,
    cost.STUDY,
    outliers.STUDY,
)
