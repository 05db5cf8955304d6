"""Prompts -> completions with per-token log-probs and the policy version that wrote them."""
