"""The compiled CPU path: numba kernels on torch's own threads. Nothing here is imported before it is used."""
