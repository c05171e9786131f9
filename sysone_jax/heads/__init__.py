"""From hidden states to logits of options. Each head takes one record; batching is the caller's ``vmap``."""
