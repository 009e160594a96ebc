"""Networks, and the data in the form that they take."""
