"""From a configuration to a plan: inputs, units, tokenizers and what to expect, before anything is written."""
