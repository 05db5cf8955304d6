"""The trainer: groups of samples -> gradient -> new weights.

torch_trainer                         TorchTrainer: forward, backward, optimizer step, publish, save
distributed, process_group            DistributedTrainer over the ranks of torchrun
multi_policy_trainer                  MultiPolicyTrainer: one trainer per role
forwarding                            ForwardingTrainer: base of trainers that forward to others
thread_trainer                        runs a trainer in a separate thread, so that rollouts go on
packing, packed_attention             samples packed into rows without padding; their attention on a CPU
flash_attention                       attention of packed samples on a GPU (FlashAttention varlen)
forward, logprobs                     hidden states, log-probs and entropy of a micro-batch
loss_aggregation                      mean of token losses over an optimizer step
optimizer, lr_schedule                AdamW, 8-bit AdamW, Muon; learning-rate schedule
critic                                value model of PPO
lora, lora_checks, merge_lora         LoRA adapters: training, checks, merging
untrainable                           model families that can only be sampled from
publish                               weights for the engines: in full, merged one by one, or as LoRA factors
quantization                          NF4 weights (QLoRA), 8-bit AdamW
fsdp, ulysses                         FSDP2 sharding; sequence parallelism
fused_layers                          gradient checkpointing, torch.compile, layers that keep fewer activations
checkpoint                            weights and optimizer state on disk
ref_model_sync, teacher_model         reference model refresh; local teacher of distillation
entropy_controller                    protocol of the entropy bonus
token_values                          log-probs and entropies of single tokens: on request, and of updates
logprob_difference                    log-prob difference of engine and trainer
memory                                bytes that training keeps, for the trainer and for `dojang plan`
update_memory                         GPU memory of an update, measured before the first rollout; out-of-memory errors
divergence                            stops training that diverges
config                                settings
"""
