"""Every chart, in one style."""
