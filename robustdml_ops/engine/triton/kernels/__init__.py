"""Triton kernels, one family a file. Imported only where Triton is there and asked for."""
