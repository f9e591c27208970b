"""Load-time checks: a model that the engine does not support raises an error that names the feature.

No check depends on the model family. There are three, from cheap to expensive: features that the configuration and the
attention layers show (:mod:`.declared`), one layer of each kind in float32 compared with the model's own
(:mod:`.layer`), and the engine's logits compared with the model's own (:mod:`.forward`).
"""
