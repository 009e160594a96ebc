"""Files and page of ``robustdml audit``: findings, how they are applied, and the page that shows them."""
