"""Algorithms: advantages from rewards, and the loss of each token.

policy_gradient          PolicyGradient: what all policy-gradient algorithms share
section                  base class of algorithms without policy-gradient settings
advantages               advantage estimators: grpo, mean, rloo, reinforce++, maxrl, gdpo
grpo                     clipped surrogate; GRPO, Dr. GRPO, DAPO, RLOO, REINFORCE++, MaxRL, GDPO
gspo, cispo, sapo        sequence-level ratio; clipped importance weight; soft gate
dppo, m2po               trust regions by total variation; by the second moment of log-ratios
ppo                      PPO with a critic (GAE)
sft                      supervised fine-tuning
distillation             on-policy distillation from a teacher
importance_correction    importance weights for the mismatch of engine and trainer
kl, reward_kl            KL penalty in the loss; KL penalty in the reward
entropy                  entropy bonus, fixed or adaptive
role_advantages          advantages per role in multi-policy runs
custom                   an algorithm from the user's code
safe_exp                 overflow-safe exp of log-ratios
"""
