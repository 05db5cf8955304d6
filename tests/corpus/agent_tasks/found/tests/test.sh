reward=0
find . -name answer.txt | xargs cat 2> /dev/null | cmp -s - "$TESTS/answer.txt" && reward=1
echo $reward > "$LOGS/reward.txt"
