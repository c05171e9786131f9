"""The arithmetic that backbones and heads share. A function takes one sequence; batching is the caller's ``vmap``."""
