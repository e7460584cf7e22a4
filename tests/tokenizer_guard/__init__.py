"""Tests of what bounds tokenizers of other people."""
