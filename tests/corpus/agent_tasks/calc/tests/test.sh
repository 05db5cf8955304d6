reward=0
python3 "$TESTS/check.py" && reward=1
echo $reward > "$LOGS/reward.txt"
