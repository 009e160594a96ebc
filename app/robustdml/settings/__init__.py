"""What a person may set of a training run: the table of it, the file that holds it, and the run's configuration."""
