"""A training loop of your own: GRPO in four verbs. Teaches a very small model to add, on a CPU, in about a minute.

    python examples/rl_loop.py

`Session` gives you the engine, the trainer and the task of a recipe; the loop is yours: add a curriculum, filter
groups, mix datasets, change rewards or advantages between `sample` and `forward_backward`.
"""

import asyncio
import sys
from dataclasses import replace

import dojang


def centre(group: dojang.Group) -> dojang.Group:
    """Recomputes the advantages of a group: reward minus the group's mean (Dr. GRPO). `sample` has set the recipe's
    own already; change this function to try an idea."""
    mean = sum(sample.reward for sample in group.samples) / len(group.samples)
    return replace(group, samples=tuple(replace(each, advantage=each.reward - mean) for each in group.samples))


async def main(steps: int) -> None:
    async with dojang.Session("quickstart", algo="dr_grpo", train={"lr": 6e-4}) as session:
        print(f"accuracy before: {await session.evaluate():.0%}")
        for step in range(1, steps + 1):
            groups = [centre(group) for group in await session.sample()]
            loss = await session.forward_backward(groups)
            step_metrics = await session.optim_step()
            await session.publish()
            rewards = [sample.reward for group in groups for sample in group.samples]
            print(
                f"step {step}: reward {sum(rewards) / len(rewards):.2f}, entropy {loss['actor/entropy']:.2f}, "
                f"gradient norm {step_metrics['actor/grad_norm']:.2f}"
            )
        print(f"accuracy after: {await session.evaluate():.0%}")
        print(f"model: {await session.save('rl_loop_model')}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
