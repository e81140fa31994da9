"""One operator a file: what it computes in plain PyTorch, and its launcher."""
