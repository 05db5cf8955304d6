"""The training loop: prompts -> rollout -> reward -> advantages -> update -> publish weights.

train                 the loop itself
run                   its objects and settings
batch_producer        samples the next batches while the trainer works
rollout               rollouts of one batch; advantages
update                update of the policy on one batch
scheduled_eval        evaluations at their steps
stoppable             work that ends when the run is told to stop
config                settings of rollout, loop, checkpoint and health
prompt_sampler        draws prompts: a seeded shuffle per epoch
kl_in_reward          KL penalty subtracted from rewards
truncation_mask       masks truncated completions out of the loss
evaluate, scores      held-out evaluation and its metrics
statistics            pass@k, confidence intervals, paired comparison of two models
exact_statistics      Clopper-Pearson interval, paired permutation test
checkpoint_ranking    ranks checkpoints by a metric
run_state             run state saved in a checkpoint
rollout_queue         leases of prompts to rollout workers, their deliveries, batches for the trainer
ledger                states of the prompts drawn: which may start, which are the next batch
journal               judged groups on disk between checkpoints
group_codec           groups as bytes: in checkpoints, in the rollout journal, from rollout workers
timeline              what trainer, engine and rollout workers did when
watchdog              says who waits for whom when nothing progresses
health_check          stops a run whose rewards carry no signal; warns of completions that are cut or run on
endings               counts completions that are cut or run on after their answer
parity_check          compares log-probs of engine and trainer before a run
metrics               metrics of a training step
"""
