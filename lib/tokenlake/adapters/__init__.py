"""The loader's batches in the forms of other libraries: PyTorch, Grain, Hugging Face, Orbax checkpoints."""
