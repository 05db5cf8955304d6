"""Weight synchronization: from the trainer to the engines.

versions        weight store: the newest versions and leased ones, and the changes between them
lora_merge      adds LoRA factors to weights
delta_codec     compares versions; changed elements as a safetensors file
pack            one update as bytes, with checksums
pack_receiver   applies packs to an engine
weight_files    weights as files, for engines in other processes
safetensors_file  writes safetensors files one tensor at a time
delta_receiver  applies deltas inside a vLLM process
"""
