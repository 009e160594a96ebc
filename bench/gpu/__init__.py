"""All that is to be found out on a GPU, in sections that each run in a process of their own: docs/gpu.md."""
