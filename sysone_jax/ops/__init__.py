"""The arithmetic that backbones and heads share. Each function takes one sequence; batching is the caller's ``vmap``."""
