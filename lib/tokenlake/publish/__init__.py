"""Publishing: a committed version, byte for byte and nothing else, in a repository of the Hugging Face Hub."""
