"""Amazon SageMaker training jobs: checks before upload, submission, logs, and the container's entry point."""
