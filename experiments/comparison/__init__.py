"""Every method against every noise over several seeds: cells, the table made of them, and the papers' claims."""
