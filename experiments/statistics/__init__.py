"""What the runs on several data sets say together: differences, ranks, and the bars that the project sets itself."""
