"""The training loop: prompts -> rollout -> reward -> advantages -> update -> publish weights.

train                 the loop itself
run                   its objects and settings
producer              interface of the producers of batches
batch_producer        samples the next batches while the trainer works
stream_producer       samples groups one by one, while weights change
rollout               rollouts of one batch
advantages            advantages of samples: per episode, or per turn
update                update of the policy on one batch
scheduled_eval        evaluations at their steps
stoppable             work that ends when the run is told to stop
config                settings of rollout, loop, checkpoint and health
prompt_sampler        draws prompts: a seeded shuffle per epoch
curriculum            draws problems without a signal rarely
kl_in_reward          KL penalty subtracted from rewards
truncation_mask       masks truncated completions out of the loss
evaluate, scores      held-out evaluation and its metrics
statistics            pass@k, confidence intervals, paired comparison of two models
exact_statistics      Clopper-Pearson interval, paired permutation test
checkpoint_ranking    ranks checkpoints by a metric
run_state             run state saved in a checkpoint
rollout_queue         leases of prompts to rollout workers, their deliveries, batches for the trainer
rollout_workers       workers that lease prompts and deliver judged groups
weight_loader         loads published weights into the engines
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
