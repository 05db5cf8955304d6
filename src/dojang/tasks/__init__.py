"""Problem + text -> Verdict. How an attempt is judged and what the judgement is worth."""
