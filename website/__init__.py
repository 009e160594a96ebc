"""The documentation site: ``make docs``. What it is made of stands in docs/; here is how it becomes pages."""
