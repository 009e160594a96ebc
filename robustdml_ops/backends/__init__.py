"""Choice of a backend, the native module, Triton's device and helpers, and the table of GPUs."""
