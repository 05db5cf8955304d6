"""Weight synchronization: from the trainer to the engines.

in_memory       weight store inside one process
delta_store     weight store that also computes the changes between two versions
delta_codec     changed elements as a safetensors file
weight_files    weights as files, for engines in other processes
delta_receiver  applies deltas inside a vLLM process
"""
