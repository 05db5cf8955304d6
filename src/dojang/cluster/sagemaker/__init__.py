"""Training jobs on Amazon SageMaker.

submit.py       `dojang launch sagemaker` and `dojang launch follow`
options.py      the command-line options
job.py          a job from its command-line options, checked before any upload
preflight.py    checks of data, models, addresses and instances
sdk.py          requests and uploads through SageMaker's Python SDK
source_code.py  the code to upload
payload.py      the recipe and overrides that a job receives
follow.py       status and logs of a job
inspect_job.py  commands to inspect a running job
entry_point.py  runs in the container: trains or resumes, exports the model
"""
