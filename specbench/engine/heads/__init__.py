"""Run draft heads: small models that draft, with their own KV cache."""
