"""Weight synchronization: from the trainer to the engines.

versions        weight store: the newest versions and leased ones, and the changes between them
lora_merge      adds LoRA factors to a weight
delta_codec     compares versions; changed elements as a safetensors file
pack            one update as bytes, with checksums
pack_receiver   applies packs to an engine
weight_files    weights as files, for engines in other processes
delta_receiver  applies deltas inside a vLLM process
"""
