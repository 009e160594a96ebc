"""Characters drawn in the typefaces of this machine, as data sets of many classes."""
