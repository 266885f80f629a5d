"""Studies of Granziol 2021: flatness is a false friend."""

from spiritlevel.lab.studies.false_friend import adaptive, batch_norm, softmax, stability, theorem, toys, weight_decay

STUDIES = (
    softmax.STUDY,
    *weight_decay.STUDIES,
    *adaptive.STUDIES,
    batch_norm.STUDY,
    stability.STUDY,
    theorem.STUDY,
    *toys.STUDIES,
)
