"""Load-time checks: what the engine does not express is refused with one sentence that names it, never silently wrong.

No model family is named here. Three questions are asked, from cheap to dear: what the configuration declares and the
attention layers ask for (:mod:`.declared`), whether a layer in float32 is the model's own (:mod:`.layer`), and whether
the engine's logits are (:mod:`.forward`).
"""
