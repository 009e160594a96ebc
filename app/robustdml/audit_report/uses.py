"""What can be done about labels that an audit doubts."""

DROP, CORRECT, WEIGHT = "drop", "correct", "weight"
USES = (DROP, CORRECT)
# A data set on a disk has no weights; training has.
TRAINING_USES = (*USES, WEIGHT)
# Proposals that are put in the place of a label are at least as sure as this.
CONFIDENCE = 0.9
