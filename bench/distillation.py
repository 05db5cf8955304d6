"""On-policy distillation of a larger teacher into a small student, beside reinforcement learning from the same start.

    python bench/distillation.py OUT_DIR
    python bench/distillation.py OUT_DIR --teacher DIR --student DIR --recipe smollm2-code [key=value ...]

Without --teacher, a Llama of --hidden and --layers with the tokenizer of dojang-tiny is trained first, from random
weights, on worked sums (supervised fine-tuning). Then two runs start from the student: one distils from the teacher,
one learns from rewards, with the same problems, samples and optimizer. Settings after the options go to both of them.

OUT_DIR gets distillation.json (figures and curves), distillation.png and the run directories. Nothing is downloaded.
Finished runs are not repeated; an OUT_DIR with runs of other settings is refused.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from dojang_process import SOURCE, curve, train
from machine import Row, arguments, machine, report

ACCURACY, REVERSE_KL = "val/accuracy", "distillation/reverse_kl"


def make_teacher(folder: Path, hidden: int, layers: int) -> Path:
    """Writes a model with random weights and the tokenizer of dojang-tiny."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from dojang import models

    source = models.resolve("dojang-tiny")
    config = AutoConfig.from_pretrained(source)
    sizes = {"hidden_size": hidden, "intermediate_size": 5 * hidden // 2, "num_hidden_layers": layers}
    config.update({**sizes, "num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32, "head_dim": 32})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    path = folder / f"untrained-{hidden}x{layers}"  # is a setting of the teacher's run, so that sizes are told apart
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(source).save_pretrained(path)
    return path


def parameters(model: str) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dojang import models

    with torch.device("meta"):
        return sum(
            each.numel()
            for each in AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(models.resolve(model))).parameters()
        )


def reached(accuracies: dict[int, float], level: float) -> int | None:
    """The first evaluated step with this accuracy."""
    return next((step for step, accuracy in sorted(accuracies.items()) if accuracy >= level), None)


def draw(path: Path, curves: dict[str, dict[str, dict[int, float]]], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=110, layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for name, found in curves.items():
        accuracies = found[ACCURACY]
        above.plot(list(accuracies), list(accuracies.values()), marker="o", label=name)
    kl = curves["distillation"][REVERSE_KL]
    below.plot(list(kl), list(kl.values()), color="C0", label="distillation")
    above.set(title=title, ylabel="held-out accuracy")
    below.set(xlabel="step", ylabel="reverse KL to the teacher, nats per token")
    for axes in (above, below):
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    figure.savefig(path)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("out", type=Path, help="folder for results and run directories")
    parser.add_argument("--teacher", default="", help="model directory; without it a teacher is trained first")
    parser.add_argument("--student", default="dojang-tiny", help="model name or directory")
    parser.add_argument("--recipe", default="quickstart", help="recipe with the data and the task")
    parser.add_argument("--steps", type=int, default=30, help="steps of both runs")
    parser.add_argument("--eval-every", type=int, default=2, help="steps between evaluations")
    parser.add_argument("--hidden", type=int, default=256, help="width of the teacher that is trained here")
    parser.add_argument("--layers", type=int, default=4, help="its number of layers")
    parser.add_argument("--teacher-steps", type=int, default=1000, help="its training steps, of 256 rows")
    options, settings = parser.parse_known_args()
    if wrong := [each for each in settings if "=" not in each or each.startswith("-")]:
        parser.error(f"not an option, nor a setting key=value: {' '.join(wrong)}")
    sys.path.insert(0, str(SOURCE))
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    teacher, taught = options.teacher, None
    if not teacher:
        rows = (
            "rollout.prompts_per_step=256",
            f"steps={options.teacher_steps}",
            "train.lr=1e-3",
            "train.warmup_steps=20",
        )
        rare = ("eval.every=100000", "checkpoint.every=100000")
        model = make_teacher(out, options.hidden, options.layers)
        taught = train("quickstart-sft", out / "teacher", f"model.name={model}", *rows, *rare)["eval"]["after"]
        teacher = str(out / "teacher" / "checkpoints" / "last")
    both = (f"model.name={options.student}", f"steps={options.steps}", f"eval.every={options.eval_every}", *settings)
    runs = {
        "distillation": train(options.recipe, out / "distilled", *both, f"distillation.teacher={teacher}"),
        "rewards": train(options.recipe, out / "rewarded", *both),
    }
    folders = {"distillation": out / "distilled", "rewards": out / "rewarded"}
    curves = {name: {each: curve(path, each) for each in (ACCURACY, REVERSE_KL)} for name, path in folders.items()}
    sizes = f"teacher {parameters(teacher) / 1e6:.3g}M, student {parameters(options.student) / 1e6:.3g}M parameters"
    known = "" if taught is None else f", teacher's accuracy {taught:.1%}"
    rows = []
    for level in (0.5, 0.9):
        mine, theirs = (reached(found[ACCURACY], level) for found in curves.values())
        if mine and theirs:
            rows.append(
                Row(f"steps to {level:.0%} held out", "distillation", "rewards", mine, theirs, "steps", theirs / mine)
            )
    mine, theirs = (each["eval"]["after"] for each in runs.values())
    ratio, note = mine / theirs if theirs else None, f"{sizes}{known}"
    rows.append(Row("held-out accuracy", "distillation", "rewards", mine, theirs, "share", ratio, note))
    told = {"bench": "distillation", "machine": machine(), "rows": [asdict(row) for row in rows], "curves": curves}
    (out / "distillation.json").write_text(json.dumps(told, indent=1))
    draw(out / "distillation.png", curves, f"{options.student}: {sizes}")
    report("distillation", rows, options.json)


if __name__ == "__main__":
    main()
