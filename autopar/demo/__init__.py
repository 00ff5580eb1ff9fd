"""The demo: a language model trained on four processes of this machine, split by a proven plan, beside plain PyTorch."""
