"""Studies of Petzka et al. 2019: flatness that reparameterisation does not change."""

from spiritlevel.lab.studies.petzka import cifar, mnist, reparameterised, robustness

STUDIES = (cifar.STUDY, reparameterised.STUDY, mnist.STUDY, robustness.STUDY)
