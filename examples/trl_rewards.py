"""dojang's rewards in TRL's GRPOTrainer: programs run by the judge, or answers checked by a task.

    pip install trl 'dojang[maths]'
    python examples/trl_rewards.py MODEL_DIRECTORY

`as_trl_reward` gives a function for `reward_funcs`. It keeps its sandbox processes between calls; a completion that
could not be judged has the reward None, which TRL leaves out: a failure of the judge is never a reward.
"""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from dojang.integrations.reward_functions import as_trl_reward

ROWS = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(10, 14) for b in range(10, 14)]


def main(model: str) -> None:
    reward = as_trl_reward("answer_line", reference="answer")
    settings = GRPOConfig(
        output_dir="trl_rewards_output",
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
    )
    trainer = GRPOTrainer(model=model, reward_funcs=reward, args=settings, train_dataset=Dataset.from_list(ROWS))
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print(f"mean reward of each step: {rewards}")


if __name__ == "__main__":
    main(sys.argv[1])
