"""Kernels as text: each as plain torch and as Triton, in one `kernels.py` beside the program."""
