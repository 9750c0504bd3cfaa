"""Effects carried out once: the subscribers of effect topics, and the ledger of what they have done."""
