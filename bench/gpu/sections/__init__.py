"""The sections, a file each: ``run(sheet)`` makes its rows."""
