"""What a run leaves to be used: the model file, and embedding, evaluating and exporting with it."""
