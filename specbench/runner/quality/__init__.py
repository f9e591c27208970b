"""Quality of a model: the tasks of lm-evaluation-harness, by its own runner, on the model that specbench loads."""
