"""Environments: conversations of several turns, with tools and rewards.

base            Environment, Reply, Step: what a user's environment is made of
tools           ToolEnvironment: tools that the model may call before it answers
tool_arguments  check of tool calls' arguments against the tool's schema
multi_turn      the workflow: plays a group of episodes per problem
episode_start   reset of an environment, and its first prompt; also tried by --dry-run
episode         token streams and rewards of an episode
results         reading of what an environment returns
calls           calls of an environment's methods, with a time limit
other_interpreter a server process with another interpreter
remote_process  environments of other packages, in child processes with another interpreter
remote_server   the program of such a process
rollout_process many rollouts of another package at a time, in a child process with another interpreter
rollout_server  the program of such a process
section         base class of the `workflow` sections of environments
sandboxed_section  the same, with a sandbox per episode
config          the union of environments
catalogue       the shipped environments, with problems to try them with

repair          program repair with the judge's feedback (repair_feedback)
retry           further tries after a wrong answer
calculator      a tool for exact arithmetic (exact_arithmetic)
python_tool     a sandboxed Python interpreter as a tool
terminal        a sandboxed shell as a tool; the task's verifier gives the reward
search          search over a corpus as a tool (bm25)
frozen_lake     FrozenLake, without other packages (lake_maps)
skyrl_gym       environments of SkyRL-Gym (skyrl_gym_tasks, its adapter)
textarena       games of TextArena (textarena_games, its adapter)
verifiers       environments of verifiers, as agents (verifiers_agent; verifiers_rollouts, its adapter)
openenv         environments of OpenEnv (openenv_sessions, its adapter)
custom          a user's environment, by `package.module:Class`

token_stream    tokens, log-probs and weight versions of a conversation
agent           settings of agents: programs that use the policy over HTTP
agent_workflow  the workflow: a session of the policy for each agent
agent_process   agents that are programs
policy_server   the policy behind the APIs of OpenAI and Anthropic

Documented in docs/environments.md and docs/agents.md.
"""
