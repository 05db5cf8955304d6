"""Workflows: one problem -> one group of graded samples (dojang.protocols.Workflow).

Workflows
  single_turn.py         one turn: sample a group of completions, grade each
  coder_tester.py        two models, up to three turns: program, test cases for it, second program
  sft_samples.py         supervised fine-tuning: the completion of the data row, nothing is sampled

Parts of them
  section.py             base class of the `workflow` section: makes a workflow, states what its roles are asked
  chat_renderer.py       messages -> prompt tokens, with the chat template; context length check
  rendered_texts.py      cache of rendered conversations
  grade_with_retries.py  verdicts of a task or judge, with retries after judge errors
  batched_turns.py       barrier that batches the turns of concurrent conversations, for reproducible sampling
  test_cases.py          the tester's prompt, parsing of its test cases, feedback to the coder
  assertions.py          parsing of assertions about a function: the test cases of problems whose tests call one
  hints.py               hinted prompts for self-distillation
  retokenize.py          samples in the tokens of a teacher with another tokenizer
  token_alignment.py     chunks of text where two tokenizations have the same boundaries, and their log-ratios
  token_bytes.py         bytes of a tokenizer's tokens

Built from the configuration in build/workflows.py. Documented in docs/workflows.md.
"""
