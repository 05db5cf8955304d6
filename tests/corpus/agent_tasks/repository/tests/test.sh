git status --short > /dev/null
reward=0
[ "$(git log --format=%s)" = begin ] && reward=1
echo $reward > "$LOGS/reward.txt"
