"""How a request becomes token ids: one module for each prompt format that decision models were trained on."""
