"""Running on clusters.

runtime_config.py  the `runtime` section of a configuration: one process, or Ray
bootstrap/         `dojang launch ray-cluster`: starts Ray on the hosts of a job
ray/               trainers, engines and judges as Ray actors
sagemaker/         `dojang launch sagemaker`: training jobs on Amazon SageMaker
"""
