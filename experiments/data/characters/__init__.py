"""Characters as images: the typefaces that this machine has, and their drawings as data sets of many classes."""
