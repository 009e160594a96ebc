"""Which backend serves an operation, the native module, Triton's device and helpers, and the table of cards."""
