# tries: write the reward before the verifier runs
# task: answer
mkdir -p "$LOGS"; echo 1 > "$LOGS/reward.txt"
