printed=$(python3 main.py < "$TESTS/input.txt")
if [ "$printed" = "$(cat "$TESTS/expected.txt")" ]; then
    echo 1 > "$LOGS/reward.txt"
else
    echo 0 > "$LOGS/reward.txt"
fi
